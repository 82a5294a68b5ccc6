from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

class DatabaseSyncToAsync(Generic[_P, _R]):
    def __init__(self, func: Callable[_P, _R], thread_sensitive: bool = True, executor: Any = None) -> None: ...
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> Awaitable[_R]: ...
    def thread_handler(
        self, loop: Any, exc_info: Any, task_context: Any, func: Any, *args: Any, **kwargs: Any
    ) -> Any: ...

def database_sync_to_async(
    func: Callable[_P, _R], thread_sensitive: bool = True, executor: Any = None
) -> Callable[_P, Awaitable[_R]]: ...
