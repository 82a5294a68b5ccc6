"""The packages on machines (§3.2) for the scheduler: written when they change, for many machines at once."""

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
    """The digests that one machine reported in a session."""

    session: int
    digests: Sequence[str]


def packages_held(cell_id: int, told: Mapping[int, InstalledReport], *, principal: Principal) -> list[int]:
    """Take in what machines have. Returns those of which something changed, by one event for all of them.

    Only packages of the cell are kept: what else a machine says it has tells the scheduler nothing. Two queries where
    nothing changed, and no lock. Locks: the cell's row, then the machines' in order of id.
    """
    wanted = sorted({digest for one in told.values() for digest in one.digests})
    packages = Package.objects.filter(cell_id=cell_id, digest__in=wanted).order_by()
    known = set(packages.values_list("digest", flat=True).distinct())
    if not _different(told, known):
        return []
    with journal.write(cell_id, principal) as entry:
        ids = sorted(told)
        execute("SELECT id FROM scheduling_machine WHERE id = ANY(%s) ORDER BY id FOR UPDATE", [ids])
        different = _different(told, known)
        if different:
            _store({machine: now for machine, (_, now) in different.items()})
            entry.append(_event(different))
    return sorted(different)


def _different(told: Mapping[int, InstalledReport], known: set[str]) -> dict[int, tuple[set[str], set[str]]]:
    """Return the machines whose newest session differs from their rows, with old and new packages."""
    rows = Machine.objects.filter(pk__in=told).exclude(state=REMOVED).order_by("id")
    found = {}
    for machine, session, packages in rows.values_list("id", "session", "packages"):
        before, now = set(packages), known.intersection(told[machine].digests)
        if session == told[machine].session and before != now:
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
