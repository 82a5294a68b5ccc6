"""Run a program of Borg Portal without one of its protections. The checker must find what follows.

    python -m tests.ha.plants lease-ignored scheduling.master dev     the module and its arguments

recheck-removed   a commit writes each assignment of a plan, also if its machine, job or task has changed meanwhile
lease-ignored     a master places tasks without the lease
fencing-removed   a Borglet does not stop tasks that the cell took away from it
fsync-off         PostgreSQL acknowledges a commit before a disk has it (`tests.ha.databases`)
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping


def _remove_recheck() -> None:
    from scheduling.master import commit

    commit._recheck = lambda cell_id, assignments, **_: (list(assignments), [])  # type: ignore[assignment]


def _ignore_lease() -> None:
    from scheduling.master.loop import Master

    honest = Master._hold_lease

    def hold(master: Master) -> bool:
        honest(master)
        return True

    Master._hold_lease = hold  # type: ignore[method-assign]


def _remove_fencing() -> None:
    from borglet.state import reconciling

    reconciling._stop = lambda *_, **__: None


# What to break, and the service in which it is broken.
PLANTS: Mapping[str, tuple[Callable[[], None], str]] = {
    "recheck-removed": (_remove_recheck, "master"),
    "lease-ignored": (_ignore_lease, "master"),
    "fencing-removed": (_remove_fencing, "borglet"),
}
FSYNC_OFF = "fsync-off"
# The faults that show what follows. A machine that fails makes both schedulers place its tasks from the same revision.
FITTING: Mapping[str, list[str]] = {
    "recheck-removed": ["machine-off", "machines-cut", "machine-off", "machines-off"],
    "lease-ignored": ["lease-holder-pause", "lease-holder-kill"],
    "fencing-removed": ["machine-cut"],
    FSYNC_OFF: ["all-control-off"],
}


def command(plant: str, service: str, module: str, *arguments: str) -> list[str]:
    """Return the arguments of Python that run a module of a service, without the protection that `plant` removes."""
    if plant in PLANTS and PLANTS[plant][1] == service:
        return ["-m", "tests.ha.plants", plant, module, *arguments]
    return ["-m", module, *arguments]


def main() -> None:
    plant, module, *arguments = sys.argv[1:]
    remove, service = PLANTS[plant]
    if service == "master":
        import django

        django.setup()
    remove()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
