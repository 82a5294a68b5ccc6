"""Limits on how many watches a caller and a process may have. A *watch* is an open live page, a WebSocket that sends
the changes of a BNS name, or a waiting long poll.

Each watch holds a connection and memory for as long as its caller wants. The portal rejects a new watch if a limit is
reached. The existing watches continue.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from django.conf import settings

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal

RETRY_AFTER_S = 10


class TooManyWatches(Rejected):
    """The error if a caller or a process has too many open watches: live pages, WebSockets of names, and long polls. A
    WebSocket is closed with the code 4429. A long poll gets the HTTP status 429 and the header `Retry-After`.
    """

    status = 429

    def __init__(self, detail: str, most: int) -> None:
        super().__init__("too-many-watches", detail, figures={"most": most, "retry_after_s": RETRY_AFTER_S})


class OpenWatch:
    """A live page, WebSocket or long poll that is open. It counts towards the limits of its caller and of the process
    until `end()` is called.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end: Callable[[], None] | None = on_end

    def end(self) -> None:
        """End the watch. A second call has no effect."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


class Watches:
    """The open watches (live pages, WebSockets of names and long polls) of a process, counted per caller. Any thread
    may use this object.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: Counter[str] = Counter()
        self._all = 0

    def __len__(self) -> int:
        return self._all

    def begin(self, principal: Principal, *, most: int, most_of_one: int) -> OpenWatch:
        """Count a new watch (an open live page, WebSocket or long poll) and return it.

        `most`: the limit for this process. `most_of_one`: the limit for one caller. All tokens and sessions of a user
        count as one caller. Raises `TooManyWatches` if a limit is reached.
        """
        caller = f"user:{principal.user_id}" if principal.user_id is not None else principal.name
        with self._lock:
            if self._of[caller] >= most_of_one:
                raise TooManyWatches(
                    f"{principal.name} has {most_of_one} open watches, which is the limit; close some of them, or try "
                    f"again in {RETRY_AFTER_S} s",
                    most_of_one,
                )
            if self._all >= most:
                raise TooManyWatches(
                    f"this web process has {most} open watches, which is the limit; open a new connection, which may "
                    "reach "
                    f"another web process, or try again in {RETRY_AFTER_S} s",
                    most,
                )
            self._of[caller] += 1
            self._all += 1
        return OpenWatch(lambda: self._ended(caller))

    def _ended(self, caller: str) -> None:
        with self._lock:
            self._all -= 1
            self._of[caller] -= 1
            if not self._of[caller]:
                del self._of[caller]


watches = Watches()


def watch_begin(principal: Principal) -> OpenWatch:
    """Count a new watch (an open live page, WebSocket or long poll) and return it. Raises `TooManyWatches` if a limit
    in the settings is reached.
    """
    return watches.begin(principal, most=settings.BORG_MAX_WATCHES, most_of_one=settings.BORG_MAX_WATCHES_PER_CALLER)
