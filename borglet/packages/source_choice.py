"""Choose the source for the next attempt to download a package, and decide when to pause or give up. This module does
no I/O.

    Ask the link ─► Try a peer ─► Try the next … ─► Try the store ─► Pause ─► Ask again …      GiveUp

Peers (other machines) are tried first, in the order that the link sent. The download is given up after a limited number
of rounds with failures. A round in which all sources were only busy is not a failure.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TypeAlias

import msgspec

from borglet.backoff import Backoff
from borglet.messages import PackageSources, PeerAddress

THE_STORE = PeerAddress("", 0)
BUSY = "busy"
MOST_COMPLAINTS = 6
MOST_PAUSE_S = 30.0
BUSY_PAUSE_S = 1.0


class FetchPatience(msgspec.Struct, frozen=True):
    """Limits on the number and the time of attempts to download one package."""

    rounds: int = 5  # the most rounds in which a source failed
    patience_s: float = 900.0  # total time, also if the link only asks to wait
    pause_s: float = 0.5  # pause after the first round without success; it doubles with each further one


class AskForSources(msgspec.Struct, frozen=True):
    """A step for the caller: ask the link for sources, then call `Choosing.answered` or `Choosing.unavailable`."""


class Try(msgspec.Struct, frozen=True):
    """The caller's next step: download from this source. If the download fails, call `Choosing.failed`."""

    source: PeerAddress


class Pause(msgspec.Struct, frozen=True):
    seconds: float


class GiveUp(msgspec.Struct, frozen=True):
    why: str


Step: TypeAlias = AskForSources | Try | Pause | GiveUp


class Choosing:
    """Chooses the sources for the download of one package. All times are seconds of a clock that never runs
    backwards.
    """

    def __init__(self, patience: FetchPatience, rng: random.Random, *, now: float) -> None:
        self._patience, self._rng = patience, rng
        self._backoff = Backoff(rng, first_s=patience.pause_s, most_s=MOST_PAUSE_S)
        self._give_up_at = now + patience.patience_s
        self._todo: deque[PeerAddress] = deque()
        self._bad: set[PeerAddress] = set()
        self._complaints: deque[str] = deque(maxlen=MOST_COMPLAINTS)
        self._rounds = 0
        self._asked = self._named = self._broken = self._away = self._final = False
        self._retry_after_s = 0.0

    def step(self, now: float) -> Step:
        """Return the next step of the download: ask for sources, try a source, pause, or give up."""
        if self._todo:
            return Try(self._todo.popleft())
        if self._asked and not self._final:
            self._asked = False
            self._rounds += self._broken
            return Pause(self._pause_s())
        if self._final or self._rounds >= self._patience.rounds or now >= self._give_up_at:
            return GiveUp("; ".join(self._complaints) or "all sources were busy the whole time")
        self._asked, self._retry_after_s = True, 0.0
        self._named = self._broken = self._away = False
        return AskForSources()

    def _pause_s(self) -> float:
        """Return how many seconds to wait before asking the link for sources again. The time is short if all sources
        were busy, and grows after each round with failures. The link can require a longer time.
        """
        if self._broken or self._away:
            return max(self._retry_after_s, self._backoff.next_s())
        pause_s = self._retry_after_s or (BUSY_PAUSE_S if self._named else self._patience.pause_s)
        return pause_s * self._rng.uniform(0.8, 1.2)

    def answered(self, found: PackageSources) -> None:
        self._retry_after_s = found.retry_after_s
        self._todo.extend(peer for peer in found.peers if peer not in self._bad)
        if found.store:
            self._todo.append(THE_STORE)
        self._named = bool(self._todo)

    def unavailable(self, text: str, *, final: bool) -> None:
        """Record that the link sent no sources for the package. `text`: the reason. `final`: whether it is useless to
        ask the link again.
        """
        self._complaints.append(text)
        self._away, self._final = True, final

    def failed(self, source: PeerAddress, reason: str, detail: str) -> None:
        """Record that the download from `source` failed. `reason`: a word such as `slow` or `busy`. `detail`: the error
        text. A peer is tried again only if it was busy; the link's store may always be tried again.
        """
        self._complaints.append(f"{name_of(source)}: {reason}: {detail}")
        if reason == BUSY:
            return
        self._broken = True
        if source != THE_STORE:
            self._bad.add(source)


def name_of(source: PeerAddress) -> str:
    return f"peer {source.address}:{source.port}" if source != THE_STORE else "the store"
