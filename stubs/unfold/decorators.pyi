from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

def display(
    function: None = None,
    *,
    boolean: bool | None = None,
    ordering: Any = None,
    description: Any = None,
    empty_value: str | None = None,
    dropdown: bool | None = None,
    label: bool | str | Mapping[Any, str] | None = None,
    header: bool | None = None,
    image: bool | None = None,
) -> Callable[[_F], _F]: ...
def action(
    function: None = None,
    *,
    permissions: Sequence[str] | None = None,
    description: Any = None,
    url_path: str | None = None,
    attrs: Mapping[str, Any] | None = None,
    icon: str | None = None,
    variant: Any = None,
) -> Callable[[_F], _F]: ...
