"""A check of the origin of WebSockets: only the portal's own pages may open them, by host name and port.

Cookies ignore ports, so a browser also sends the portal's cookies for pages of other servers on the same host, such as
a task. Such a page must not be able to open a shell with them.
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
    """Return whether `origin` from a browser is the server `host`, which may omit a default port. Pure."""
    try:
        found, asked = urlsplit(origin), urlsplit(f"//{host}")
        usual = _PORTS.get(found.scheme)
        if usual is None or not found.hostname:
            return False
        return (found.hostname, found.port or usual) == (asked.hostname, asked.port or usual)
    except ValueError:
        return False


class SameOrigin:
    """Accept requests with a token, which no page can add, and pages of the portal itself.

    Programs other than browsers send no origin; pages of the portal also come from one of its allowed hosts.
    """

    def __init__(self, inner: Asgi) -> None:
        self._inner = inner
        self._of_allowed_hosts = AllowedHostsOriginValidator(inner)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get(b"origin", "")
        if headers.get(b"authorization", "").lower().startswith("bearer "):  # browsers add other schemes by themselves
            await self._inner(scope, receive, send)
        elif origin in settings.CSRF_TRUSTED_ORIGINS or same_origin(origin, headers.get(b"host", "")):
            await self._of_allowed_hosts(scope, receive, send)
        else:
            await WebsocketDenier()(scope, receive, send)
