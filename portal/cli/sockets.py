"""WebSockets to the portal. Only commands that need a WebSocket import this module, because the import takes 50 ms."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from portal.cli.context import Context
from portal.cli.failure import CommandFailed, unreachable

# The error codes that the WebSocket close codes stand for.
CODES = {
    4401: "not-authenticated",
    4403: "forbidden",
    4404: "not-found",
    4409: "conflict",
    4422: "invalid-name",
    4429: "too-many-watches",
    4503: "unavailable",
}
# The close codes after which a retry may succeed.
PASSING = (4429, 4503)


@contextlib.contextmanager
def dialled(session: Context, path: str, *, what: str, **options: Any) -> Iterator[ClientConnection]:
    """Open a WebSocket to `path` for the duration of the `with` block, with the token of the profile. Raises
    `CommandFailed` if the portal cannot be reached or rejects the request.

    `what`: the purpose of the WebSocket, for error messages. `options`: more options for the library's function
    `connect`.
    """
    portal = session.profile.url.rstrip("/")
    try:
        socket = connect(  # type: ignore[call-overload]
            f"ws{portal.removeprefix('http')}{path}",
            origin=portal,
            additional_headers={"Authorization": f"Bearer {session.client.profile.token}"},
            ssl=ssl.create_default_context() if portal.startswith("https:") else None,
            open_timeout=10.0,
            close_timeout=2.0,
            proxy=None,
            user_agent_header="borgctl",
            **options,
        )
    except InvalidStatus as error:
        status = error.response.status_code
        problem = f"{portal} answered with status {status}; check that it is a Borg Portal that supports {what}"
        raise CommandFailed("refused", problem, passing=status >= 500) from error
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise unreachable(portal, error) from error
    with socket:
        yield socket
