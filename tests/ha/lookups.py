"""A client of the resolvers: where do the names of tasks point, as DNS answers it?"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import dns.exception
import dns.message
import dns.query
import dns.rdatatype

from tests.ha.checker import Lookup
from tests.ha.history import Action, History

ZONE, PORT = "borg", 5353
_PAUSE_S, _ANSWER_S = 0.2, 1.0
_RECENT_REQUESTS, _MOST_TASKS = 40, 4


class Lookups:
    """A thread that looks up tasks of recent jobs at a resolver drawn at random, from `__enter__` to `__exit__`.

    `found`: answers with an address, of resolvers that report that they follow the cell.
    """

    def __init__(self, resolvers: Sequence[str], history: History, *, domain: str, rng: random.Random) -> None:
        self.found: list[Lookup] = []
        self.asked = 0
        self._resolvers, self._history, self._domain, self._rng = resolvers, history, domain, rng
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookups", daemon=True)

    def __enter__(self) -> Lookups:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(_PAUSE_S):
            recent = self._history.requests[-_RECENT_REQUESTS:]
            jobs = [one.name for one in recent if one.action != Action.BUY]
            if jobs:
                self._look_up(
                    self._rng.choice(self._resolvers), self._rng.choice(jobs), self._rng.randrange(_MOST_TASKS)
                )

    def _look_up(self, resolver: str, job: str, index: int) -> None:
        self.asked += 1
        address = _answer(resolver, f"{index}.{job}.{self._domain}", "A")
        at = time.time()
        if address and "status=ok" in _answer(resolver, f"health.{ZONE}", "TXT"):
            self.found.append(Lookup(at, resolver, job, index, address))


def _answer(resolver: str, name: str, kind: str) -> str:
    """Return the first record of a name as text, or "" if the resolver has none or does not answer."""
    query = dns.message.make_query(f"{name}.", kind)
    try:
        answer = dns.query.udp(query, resolver, port=PORT, timeout=_ANSWER_S)
    except (dns.exception.DNSException, OSError):
        return ""
    wanted = dns.rdatatype.from_text(kind)
    return next((record.to_text() for records in answer.answer if records.rdtype == wanted for record in records), "")
