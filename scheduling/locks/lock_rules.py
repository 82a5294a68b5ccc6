"""What a lock may look like, and how long its holders hold it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from quota.vocabulary.errors import invalid
from scheduling.spec.schema import LOCK_NAME, LOCK_NAME_RULE, MAX_LOCK_NAME

MAX_CONTENT_BYTES = 64 * 1024
MAX_LOCKS = 1_000  # of a tenant in a cell
KEPT_NAMES = 2 * MAX_LOCKS  # with deleted locks, whose numbers are kept
# The link renews the lease of a task three times within this time. Its Borglet ends it a second earlier.
TASK_LEASE_S = 15.0
LEAST_LEASE_S, LONGEST_LEASE_S = 5.0, 3_600.0
MOST_WAIT_S = 60.0
# PostgreSQL ends a transaction whose process does nothing for this time.
IDLE_TRANSACTION_S = 5.0


def check_name(name: str) -> None:
    """Raise `Rejected` if `name` cannot be the name of a lock."""
    if not LOCK_NAME.fullmatch(name) or len(name) > MAX_LOCK_NAME:
        raise invalid("name", f"{name[:80]!r} is not the name of a lock; {LOCK_NAME_RULE}")


def check_content(content: str) -> None:
    """Raise `Rejected` if PostgreSQL cannot store the content, or if it is too long."""
    try:
        size = len(content.encode())
    except UnicodeEncodeError:
        raise invalid("content", "it is not valid text; encode other data, for example in base64") from None
    if "\0" in content:
        raise invalid("content", "it contains a NUL character; encode such data, for example in base64")
    if size > MAX_CONTENT_BYTES:
        cure = f"store at most {MAX_CONTENT_BYTES}, and larger data in a package"
        raise invalid("content", f"it has {size} bytes; {cure}")


def check_lease(lease_s: float) -> None:
    if not LEAST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
        raise invalid("lease_s", f"{lease_s:g} is not accepted; give {LEAST_LEASE_S:g} to {LONGEST_LEASE_S:g} seconds")


def covers(names: Iterable[str], lock: str) -> bool:
    """Return whether a task whose job file has `names` may use a lock. A name is a lock, or a folder of locks."""
    return any(lock == name or lock.startswith(f"{name}/") for name in names)
