"""The parameters of a recording, their checks, and requests by SREs. A recording is a study cell whose history comes
from a simulation. The module imports no heavy library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from celery import current_app
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.cells.cells import RESERVED_NAMES
from scheduling.journal import wakeups
from scheduling.models import Cell

DRAWN = "drawn"
MACHINES, DAYS, SEED = 500, 7.0, 2011
MOST_MACHINES, MOST_DAYS = 2_500, 28.0
_WITHIN_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The parameters of a recording. `name`: the name of the new cell. `source`: the name of a source of simulations
    (`scheduling.simulator.sessions.sources`). `data`: the folder with the files of the source. `machines`: the number
    of machines of the source `drawn`, a random cell; other sources have a fixed number. `days`: the length of the
    history. `seed`: decides all random values.
    """

    name: str
    source: str = DRAWN
    data: Path | None = None
    machines: int = MACHINES
    days: float = DAYS
    seed: int = SEED


def check(*, principal: Principal, wish: Wish) -> None:
    """Check the parameters `wish` of a recording. Raises `Forbidden` unless the caller is an SRE, `Rejected` for a
    wrong value, and `Conflict` if a cell has the name.
    """
    require(principal, Action.CELL_ADMIN)
    if not 0 < wish.days <= MOST_DAYS:
        raise invalid("days", f"{wish.days:g} days are not accepted; give a number above 0, up to {MOST_DAYS:g}")
    if not 1 <= wish.machines <= MOST_MACHINES:
        raise invalid("machines", f"{wish.machines} machines are not accepted; give a number from 1 to {MOST_MACHINES}")
    if not 0 <= wish.seed < 2**32:
        raise invalid("seed", f"the seed {wish.seed} is not accepted; give a number from 0 to {2**32 - 1}")
    try:
        Cell._meta.get_field("name").clean(wish.name, None)
    except ValidationError as error:
        raise invalid("name", " ".join(error.messages)) from error
    if wish.name in RESERVED_NAMES:
        raise invalid(
            "name", f"the name {wish.name!r} is reserved for the DNS zone; choose another name", "reserved-name"
        )
    if Cell.objects.filter(Q(name=wish.name) | Q(deleted_name=wish.name)).exists():
        detail = f"cell {wish.name} already exists, or was deleted and has files; choose another name"
        raise Conflict("cell-exists", detail, fields={"name": "taken"})


def record_request(*, principal: Principal, name: str, machines: int, days: float, seed: int) -> None:
    """Ask a worker to record a cell with random machines and jobs. The cell exists when everything is recorded. Raises
    the errors of `check`, and `Rejected` if Redis is away.
    """
    check(principal=principal, wish=Wish(name=name, machines=machines, days=days, seed=seed))
    if not wakeups.answers():
        raise Rejected(
            "redis-unavailable", "Redis with the queue of the workers is unreachable; try again later", status=503
        )
    wanted = {"name": name, "machines": machines, "days": days, "seed": seed}
    transaction.on_commit(lambda: current_app.send_task("scheduling.record", kwargs=wanted))


def record_in_child(*, name: str, machines: int, days: float, seed: int) -> str:
    """Record a cell with random machines and jobs in a child process, so that its memory is free again afterwards.
    Return the output of the process. Raises `RuntimeError` with its error output if it fails.
    """
    # No process reads the metrics of the child.
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE, "PROMETHEUS_MULTIPROC_DIR": ""}
    command = [sys.executable, "-m", "django", "record", name]
    command += ["--machines", str(machines), "--days", str(days), "--seed", str(seed)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    if done.returncode:
        raise RuntimeError(
            f"cannot create study cell {name} with a simulated history; the process printed:"
            f" {done.stderr.strip()[-1000:]}"
        )
    return done.stdout.strip()
