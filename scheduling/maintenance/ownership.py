"""Which of several windows drains a machine, and how. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.models import MaintenanceWindow


@dataclass(frozen=True, slots=True)
class WantedDrain:
    """The drain that a machine should have. `window`: the window to which it belongs. `break_budgets`: whether tasks
    leave despite disruption budgets after its deadline, which is the start of the window. `everything`: whether tasks
    leave too that end by their time limits.
    """

    window: MaintenanceWindow
    break_budgets: bool
    everything: bool


def wanted_drain(windows: Sequence[MaintenanceWindow], now: dt.datetime) -> WantedDrain:
    """Return the drain of a machine that all these windows cover; there is at least one. The window that starts first
    decides. The strictest window that has started decides whether budgets are broken.
    """
    first = min(windows, key=lambda window: (window.starts_at, window.pk))
    started = [window for window in windows if window.starts_at <= now]
    strict = any(window.break_budgets for window in started or [first])
    return WantedDrain(first, strict, bool(started))
