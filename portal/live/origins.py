"""A check of the origin of WebSockets: only pages of the portal itself may open WebSockets.

A browser sends the cookies of the portal to all ports of a host. A task on that host can run a web server of its own.
Without the check, a page of that server could open a shell with these cookies. The check compares the host name and
the port.
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
    """Return whether the URL `origin` has the host name and port of `host`. Both may omit port 80 or 443. Pure."""
    try:
        found, asked = urlsplit(origin), urlsplit(f"//{host}")
        usual = _PORTS.get(found.scheme)
        if usual is None or not found.hostname:
            return False
        return (found.hostname, found.port or usual) == (asked.hostname, asked.port or usual)
    except ValueError:
        return False


class SameOrigin:
    """An ASGI application in front of `inner`. It passes two kinds of requests to `inner`: requests with a token, and
    requests from the portal's own pages. It rejects all other requests.

    A page of another server cannot add a token to a request.
    """

    def __init__(self, inner: Asgi) -> None:
        self._inner = inner
        self._of_allowed_hosts = AllowedHostsOriginValidator(inner)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get(b"origin", "")
        if headers.get(b"authorization", "").lower().startswith("bearer "):  # browsers can add only other schemes
            await self._inner(scope, receive, send)
        elif origin in settings.CSRF_TRUSTED_ORIGINS or same_origin(origin, headers.get(b"host", "")):
            await self._of_allowed_hosts(scope, receive, send)
        else:
            await WebsocketDenier()(scope, receive, send)
