"""Store which packages are installed on machines. The scheduler prefers machines that already have a task's packages
(§3.2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.journal.sql import execute
from scheduling.models import Machine, Package
from scheduling.models.machines import REMOVED


class InstalledReport(NamedTuple):
    """The digests of the packages that a machine reports as installed. `session`: the number of the machine's
    connection.
    """

    session: int
    digests: Sequence[str]


def packages_held(cell_id: int, reports: Mapping[int, InstalledReport], *, principal: Principal) -> list[int]:
    """Store which packages are installed on machines, and append one journal event. Return the ids of machines whose
    packages changed.

    `reports`: the reports by machine id. Digests without a package in the cell are ignored. Makes two queries and takes
    no lock if nothing changed. Otherwise locks the row of the cell, then the rows of the machines in order of id.
    """
    wanted = sorted({digest for one in reports.values() for digest in one.digests})
    packages = Package.objects.filter(cell_id=cell_id, digest__in=wanted).order_by()
    known = set(packages.values_list("digest", flat=True).distinct())
    if not _different(reports, known):
        return []
    with journal.write(cell_id, principal) as entry:
        ids = sorted(reports)
        execute("SELECT id FROM scheduling_machine WHERE id = ANY(%s) ORDER BY id FOR UPDATE", [ids])
        different = _different(reports, known)
        if different:
            _store({machine: now for machine, (_, now) in different.items()})
            entry.append(_event(different))
    return sorted(different)


def _different(reports: Mapping[int, InstalledReport], known: set[str]) -> dict[int, tuple[set[str], set[str]]]:
    """Return (stored packages, reported packages) by machine id, for each machine for which the two differ."""
    rows = Machine.objects.filter(pk__in=reports).exclude(state=REMOVED).order_by("id")
    found = {}
    for machine, session, packages in rows.values_list("id", "session", "packages"):
        before, now = set(packages), known.intersection(reports[machine].digests)
        if session == reports[machine].session and before != now:
            found[machine] = before, now
    return found


def _store(held: Mapping[int, set[str]]) -> None:
    execute(
        "UPDATE scheduling_machine AS m SET packages = string_to_array(h.packages, ' ')"
        " FROM unnest(%s::bigint[], %s::text[]) AS h(id, packages) WHERE m.id = h.id",
        [list(held), [" ".join(sorted(digests)) for digests in held.values()]],
    )


def _event(different: Mapping[int, tuple[set[str], set[str]]]) -> events.PackagesHeld:
    came: dict[str, list[int]] = defaultdict(list)
    went: dict[str, list[int]] = defaultdict(list)
    for machine, (before, now) in different.items():
        for digest in now - before:
            came[digest].append(machine)
        for digest in before - now:
            went[digest].append(machine)
    return events.PackagesHeld(
        came={digest: tuple(came[digest]) for digest in sorted(came)},
        went={digest: tuple(went[digest]) for digest in sorted(went)},
    )
