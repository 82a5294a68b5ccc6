"""Quarantine: after a new history of the cell, for example a restore, the Borglet keeps tasks that the database does
not contain, until an SRE decides about them. Pure.
"""

from __future__ import annotations

from borglet.messages import Desired
from borglet.state.incarnations import Incarnation


def is_new_history(before: Desired | None, after: Desired) -> bool:
    """Return whether the desired state `after` is of another history of the cell than `before`."""
    return before is not None and before.history_id != after.history_id


def stays_in_quarantine(inc: Incarnation, *, listed: bool, new_history: bool) -> bool:
    """Return whether an incarnation that has run is kept instead of stopped. `listed`: whether the desired state
    contains it; `new_history`: whether this desired state is the first of a new history.
    """
    return not listed and (new_history or inc.quarantined)
