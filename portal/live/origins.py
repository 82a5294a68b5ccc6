"""Whose pages may open the portal's WebSockets: its own alone, by name and by port.

Cookies know no ports, so a browser sends a visitor's to whatever else runs on the portal's host: a task, say, that
serves pages there. It must not be able to open a shell by them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier
from django.conf import settings

_PORTS = {"http": 80, "https": 443}
Asgi = Callable[[Any, Any, Any], Awaitable[None]]


def same_origin(origin: str, host: str) -> bool:
    """Whether `origin`, as browsers send it, is of who was asked for: `host`, with its port where it isn't the usual
    one of the origin's scheme. Pure."""
    try:
        found, asked = urlsplit(origin), urlsplit(f"//{host}")
        usual = _PORTS.get(found.scheme)
        if usual is None or not found.hostname:
            return False
        return (found.hostname, found.port or usual) == (asked.hostname, asked.port or usual)
    except ValueError:
        return False


class SameOrigin:
    """Lets through who comes with a token, which no page can add, and pages of the portal itself.

    Programs other than browsers send no origin; pages of the portal also come from one of its allowed hosts.
    """

    def __init__(self, inner: Asgi) -> None:
        self._inner = inner
        self._of_allowed_hosts = AllowedHostsOriginValidator(inner)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get(b"origin", "")
        if headers.get(b"authorization", "").lower().startswith("bearer "):  # of others browsers make some up
            await self._inner(scope, receive, send)
        elif origin in settings.CSRF_TRUSTED_ORIGINS or same_origin(origin, headers.get(b"host", "")):
            await self._of_allowed_hosts(scope, receive, send)
        else:
            await WebsocketDenier()(scope, receive, send)
