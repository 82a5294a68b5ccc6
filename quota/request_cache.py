"""A cache for values that one request reads many times, such as the rules of a market.

    with reads_once():
        market_of("dev"); market_of("dev")      # one query

Use `reads_once` only for code that changes nothing, because cached values stay the same until the block ends.
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
    """Cache the results of functions that are decorated with `@once`, until the outermost `with` block ends."""
    if caching():
        yield
        return
    before = _known.set({})
    try:
        yield
    finally:
        _known.reset(before)


def caching() -> bool:
    """Return whether the caller runs within `reads_once`."""
    return _known.get() is not None


def once(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a function: within `reads_once`, the function runs only once for the same positional arguments.

    Later calls return the cached result. Outside `reads_once`, the function runs at each call.
    """

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
