"""WebSockets to the portal with the profile's token. The import takes 50 ms, so only commands that need it load it."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from portal.cli.context import Context
from portal.cli.failure import CommandFailed

# Meaning of the WebSocket close codes.
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
def dialled(
    session: Context, path: str, *, what: str, max_size: int, compression: str | None = None
) -> Iterator[ClientConnection]:
    """Open a WebSocket. `what` names its purpose in error messages. Raises `CommandFailed`."""
    portal = session.profile.url.rstrip("/")
    try:
        socket = connect(  # type: ignore[call-overload]
            f"ws{portal.removeprefix('http')}{path}",
            origin=portal,
            additional_headers={"Authorization": f"Bearer {session.client.profile.token}"},
            ssl=ssl.create_default_context() if portal.startswith("https:") else None,
            open_timeout=10.0,
            close_timeout=2.0,
            max_size=max_size,
            compression=compression,
            proxy=None,
            user_agent_header="borgctl",
        )
    except InvalidStatus as error:
        status = error.response.status_code
        raise CommandFailed(
            "refused",
            f"{portal} answered with status {status}; is it a Borg Portal that supports {what}?",
            passing=status >= 500,
        ) from error
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise CommandFailed(
            "unreachable",
            f"cannot reach the portal at {portal}: {error or type(error).__name__}. Is it running (`make up`)?",
            passing=True,
        ) from error
    with socket:
        yield socket
