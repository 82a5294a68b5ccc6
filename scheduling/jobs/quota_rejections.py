"""Details of rejections for missing quota: the jobs that use the quota, and an order (purchase) that would be enough
(§2.5).

The details are computed after the transaction of the submission, without the cell's lock. They are computed only for
the first rejections of a request. Jobs are listed for at most `TOLD` pairs of tenant and band. Orders are computed for
at most `CURED` pairs, one order per pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quota.admission.admission import COUNTED, AdmissionRequest
from quota.market.suggested_orders import remedies
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, may
from quota.vocabulary.resources import NAMES, SIZE, Vector, add
from scheduling.journal.sql import query
from scheduling.models import Cell

TOLD, CURED = 20, 3
HOLDERS = 10

_Pair = tuple[int, str]


def explain(principal: Principal, cell: Cell, refused: Sequence[tuple[Rejected, AdmissionRequest]]) -> None:
    """Add `holders`, `holding_jobs` and `cure` to the figures of the rejections in `refused` that have the code
    `quota-exceeded`.

    `holders`: the live jobs of the same tenant and band that use most of the resource whose quota is short, with
    their amounts. `holding_jobs`: the number of all live jobs that use quota of this tenant and band. `cure`: an
    order (purchase) of quota that would be enough.
    """
    firsts: dict[_Pair, Rejected] = {}
    wanted: dict[_Pair, Vector] = {}
    for problem, ask in refused:
        if problem.code != "quota-exceeded":
            continue
        pair = (ask.tenant_id, problem.figures["band"])
        if pair in firsts or len(firsts) < TOLD:
            firsts.setdefault(pair, problem)
            change = ask.change[:SIZE]
            wanted[pair] = add(wanted[pair], change) if pair in wanted else change
    visible = {
        pair: problem
        for pair, problem in firsts.items()
        if may(principal, Action.JOB_VIEW, tenant=problem.figures["tenant"], cell=cell.name)
    }
    for pair, (number, holders) in _holders(cell, visible).items():
        visible[pair].figures |= {"holding_jobs": number, "holders": holders}
    few = dict(list(wanted.items())[:CURED])
    for pair, remedy in remedies(cell.name, few).items() if few else ():
        firsts[pair].figures["cure"] = remedy.as_json()


def _holders(cell: Cell, problems: dict[_Pair, Rejected]) -> dict[_Pair, tuple[int, list[dict[str, Any]]]]:
    if not problems:
        return {}
    rows = query(
        "SELECT p.t, p.b, j.number, j.name, j.priority, j.tasks_total, j.requested"
        " FROM unnest(%s::bigint[], %s::text[], %s::int[]) AS p(t, b, place) CROSS JOIN LATERAL ("
        "  SELECT id, name, priority, tasks_total, requested, count(*) OVER () AS number FROM scheduling_job"
        "  WHERE cell_id = %s AND tenant_id = p.t AND band = p.b AND priority > 0 AND state <> 'dead'"
        "  ORDER BY requested[p.place] DESC, id LIMIT %s) AS j ORDER BY p.t, p.b, j.requested[p.place] DESC, j.id",
        [
            [tenant for tenant, _ in problems],
            [band for _, band in problems],
            [1 + NAMES.index(_shortest(problem)) for problem in problems.values()],
            cell.id,
            HOLDERS,
        ],
    )
    found: dict[_Pair, tuple[int, list[dict[str, Any]]]] = {pair: (0, []) for pair in problems}
    for tenant, band, number, name, priority, tasks, requested in rows:
        holds = {NAMES[i]: requested[i] for i in COUNTED if requested[i]}
        job = {"job": name, "priority": priority, "tasks": tasks, "holds": holds}
        found[tenant, band] = (number, [*found[tenant, band][1], job])
    return found


def _shortest(problem: Rejected) -> str:
    """Return the name of the resource whose missing amount, divided by the granted amount, is largest."""
    short = problem.figures["short"]
    return str(max(short, key=lambda name: short[name]["short"] / max(1, short[name]["granted"])))
