"""Why a class of tasks is pending: values with a code; the sentence is made at the edge (§2.6)."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ReasonCode(StrEnum):
    """What ruled machines out. Each is documented in `scheduling/README.md`; a test compares."""

    NO_MACHINES = "no-machines"
    CONSTRAINT = "constraint"
    MACHINE_STATE = "machine-state"
    RESOURCE = "resource"
    PORTS = "ports"
    MAX_PER_MACHINE = "max-per-machine"
    MAX_PER_RACK = "max-per-rack"
    MAX_PER_POWER_DOMAIN = "max-per-power-domain"
    CRASHED_PAIR = "crashed-pair"


class RuledOut(msgspec.Struct, frozen=True):
    """`machines` fell to `code` and to nothing before it. `subject`: which resource or constraint.

    `wanted` and `largest` are in the units of the axis; `largest` is the most that one machine has left.
    """

    code: ReasonCode
    subject: str
    machines: int
    wanted: int = 0
    largest: int = 0


class Change(msgspec.Struct, frozen=True):
    """The smallest single change of the request that would make it fit, and on how many machines."""

    subject: str
    to: int | str
    machines: int


class Why(msgspec.Struct, frozen=True):
    """The one answer that REST, CLI and portal show. `tasks`: (job id, number of pending tasks) of the class."""

    tasks: tuple[tuple[int, int], ...]
    machines: int
    ruled_out: tuple[RuledOut, ...] = ()
    changes: tuple[Change, ...] = ()
    never: bool = False  # no machine of the cell could hold it even if it were empty
    ahead: int = 0  # pending tasks that the queue tries first
