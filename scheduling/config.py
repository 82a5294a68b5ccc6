"""A cell's settings: `Cell.settings`, validated, with a sentence under each. An SRE changes them in the admin."""

from __future__ import annotations

import json

import msgspec

from quota.errors import Refused
from scheduling.core.presets import PRESETS


class CellSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that differs from cell to cell. Absent means the default here."""

    scorer: str = "hybrid"
    """How machines are scored (§3.2): hybrid, best-fit or e-pvm."""

    schedulers: str = "one"
    """Who places (§3.4): one scheduler, or by-workload: one for services, one for batch, at the same time."""

    batch_in_prod_by_reservation: bool = False
    """Footnote 4 of §5.5: batch tasks in prod bands may be placed in reclaimed resources."""

    crashed_pair_s: float = 600.0
    """How long a task is kept off a machine it crashed on (§4)."""

    poll_interval_s: float = 0.0
    """Seconds between polls of one Borglet; 0: by the number of machines, 2 to 5."""

    down_after_s: float = 12.0
    """A machine silent for this long is marked down."""

    evictions_per_s: float = 100.0
    """How fast tasks of machines that are down are rescheduled: a partition looks like many dead machines (§4)."""

    suspect_share: float = 0.5
    """When more than this share of the machines falls silent together, the link is suspected first."""

    suspect_hold_s: float = 60.0
    """How long such a suspicion holds marking machines down."""

    drain_per_s: float = 50.0
    """How fast tasks leave draining machines."""

    drain_patience_s: float = 600.0
    """A task that has been down for this long holds up the drain of its siblings no more."""

    rotate_secrets_s: float = 86400.0
    """A machine's secret is replaced when it is this old, give or take a fifth; 0: only when somebody asks."""

    reclamation: str = "medium"
    """How closely reservations follow usage (§5.5): off, baseline, medium or aggressive (Figure 12)."""

    shortage_at: float = 0.97
    """When tasks use more than this share of a machine's RAM or disk, some are evicted (§6.2); 0: never."""


def load(settings: dict[str, object]) -> CellSettings:
    """Raises `Refused` naming the setting and what it takes."""
    try:
        loaded = msgspec.convert(settings, CellSettings)
    except msgspec.ValidationError as error:
        told, fields = _misread(settings, error)
        raise Refused("invalid-settings", told, fields=fields) from error
    problems = {
        name: "must not be negative"
        for name in CellSettings.__struct_fields__
        if isinstance(value := getattr(loaded, name), float) and value < 0
    }
    if loaded.scorer not in ("hybrid", "best-fit", "e-pvm"):
        problems["scorer"] = "is one of hybrid, best-fit, e-pvm"
    if loaded.reclamation not in PRESETS:
        problems["reclamation"] = f"is one of {', '.join(PRESETS)}"
    if loaded.shortage_at > 1:
        problems["shortage_at"] = "lies between 0 and 1"
    if loaded.schedulers not in ("one", "by-workload"):
        problems["schedulers"] = "is one of one, by-workload"
    if not 0 < loaded.suspect_share <= 1:
        problems["suspect_share"] = "lies above 0, up to 1"
    if problems:
        raise Refused(
            "invalid-settings",
            "; ".join(f"{name} {what}" for name, what in problems.items()),
            fields={f"settings.{name}": what for name, what in problems.items()},
        )
    return loaded


def _misread(settings: object, error: msgspec.ValidationError) -> tuple[str, dict[str, str]]:
    """What the matter is with settings that can't be read: the message, and the same by field."""
    known = CellSettings.__struct_fields__
    every = f"the settings of a cell are {', '.join(known)}"
    if not isinstance(settings, dict):
        told = f"must be a JSON object such as {{}}; {every}"
        return f"settings {told}", {"settings": told}
    if unknown := sorted(map(str, settings.keys() - set(known))):
        told = f"unknown: {', '.join(unknown)}; {every}"
        return f"settings {told}", {"settings": told}
    name = str(error).rpartition("`$.")[2].rstrip("`")
    default = getattr(CellSettings(), name)
    wanted = {bool: "true or false", float: "a number", str: "text"}[type(default)]
    told = f"must be {wanted}, such as {json.dumps(default)}; leave it out for the default"
    return f"{name} {told}", {f"settings.{name}": told}
