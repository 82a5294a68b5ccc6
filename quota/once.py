"""Reads that a request needs many times, such as the rules of a market, are made once within `reads_once`.

    with reads_once():
        market_of("dev"); market_of("dev")      # one query

Only for code that changes nothing: a value that was read stays the same until the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_known: ContextVar[dict[Hashable, Any] | None] = ContextVar("known", default=None)


@contextmanager
def reads_once() -> Iterator[None]:
    """Within this block, functions with `@once` run once for the same arguments."""
    before = _known.set({})
    try:
        yield
    finally:
        _known.reset(before)


def once(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let a function run once for the same positional arguments within `reads_once`; elsewhere it runs each time."""

    @wraps(function)
    def read(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        known = _known.get()
        if known is None or kwargs:
            return function(*args, **kwargs)
        key = (function, *args)
        if key not in known:
            known[key] = function(*args, **kwargs)
        found: _Result = known[key]
        return found

    return read
