"""WebSockets to the portal, by the profile's token. Loaded when wanted: 50 ms that other commands need not wait for."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from portal.cli.context import Context
from portal.cli.failure import CommandFailed

# What the code of a close means.
CODES = {
    4401: "not-authenticated",
    4403: "forbidden",
    4404: "not-found",
    4409: "conflict",
    4422: "invalid-name",
    4429: "too-many-watches",
    4503: "unavailable",
}
# Of them, those that may be otherwise in a moment.
PASSING = (4429, 4503)


@contextlib.contextmanager
def dialled(
    ours: Context, path: str, *, what: str, max_size: int, compression: str | None = None
) -> Iterator[ClientConnection]:
    """`what` is there, for who reads why it failed. Raises `CommandFailed`."""
    portal = ours.profile.url.rstrip("/")
    try:
        socket = connect(
            f"ws{portal.removeprefix('http')}{path}",
            origin=portal,  # type: ignore[arg-type]
            additional_headers={"Authorization": f"Bearer {ours.client.profile.token}"},
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
            f"{portal} answered {status}; is it a Borg Portal that has {what}?",
            passing=status >= 500,
        ) from error
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise CommandFailed(
            "unreachable",
            f"can't reach the portal at {portal}: {error or type(error).__name__}. Is it up (`make up`)?",
            passing=True,
        ) from error
    with socket:
        yield socket
