"""The search over jobs, tasks, machines, cells, tenants, orders, names, pages and documentation, for Sigma and the
console. It also finds services, workflows, cron jobs, config files and machine pools (`named_things`).

    text ──► query (pure) ──► objects (queries) ─┐
                         └──► places (in memory) ─┴─► groups ──► pages: JSON for the palette (Ctrl-K), or HTML

The results contain only what the user may see: `objects` starts from the selectors of REST and pages. The number of
queries does not depend on the number of rows.
"""
