from collections.abc import Callable, Iterable
from typing import Any

result_headers: Callable[[Any], Iterable[Any]]
