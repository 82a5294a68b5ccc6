"""Checks that the stored weights of services agree with the journal. `manage.py validate` runs them."""

from __future__ import annotations

from scheduling.journal.sql import query

# One lookup in the journal per service with weights. Events below the floor are only in the archive.
_DIFFERING = """
SELECT t.name || '/' || w.service, w.revision, w.weights::text, e.weights::text,
  w.due_at IS NOT NULL, coalesce(w.switch->>'state', '') IN ('switching', 'stopping')
FROM scheduling_serviceweighting AS w JOIN quota_tenant AS t ON t.id = w.tenant_id
JOIN scheduling_cell AS c ON c.id = w.cell_id
LEFT JOIN LATERAL (
  SELECT data->'weights' AS weights FROM scheduling_event
  WHERE cell_id = w.cell_id AND revision = w.revision AND kind = 'service.weighed'
    AND data->>'service' = w.service AND data->>'tenant' = t.name ORDER BY seq DESC LIMIT 1
) AS e ON true
WHERE w.cell_id = %s AND w.revision > c.journal_floor ORDER BY 1
"""


def weight_problems(cell_id: int) -> list[str]:
    """Return one sentence for each service whose row differs from its last event in the journal, or contradicts
    itself. Makes one query.
    """
    problems = []
    for name, revision, weights, in_event, due, going in query(_DIFFERING, [cell_id]):
        if weights != in_event:
            problems.append(
                f"service {name} has the weights {weights}, but its event at revision {revision} says {in_event}"
            )
        if due != going:
            problems.append(
                f"service {name} {'has' if due else 'lacks'} a time for the"
                " next step of its switch, unlike the state of the switch"
            )
    return problems
