"""`borgctl resolve NAME --watch`: prints one line for each change of a name. The changes arrive over a WebSocket.

If the connection is lost, the command connects again after a pause. It then prints only what has changed.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from websockets.exceptions import ConnectionClosed

from portal.cli import output, sockets
from portal.cli.context import Context
from portal.cli.failure import CommandFailed

# The portal sends a message at least every 15 s.
_SILENCE_S = 45.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_MOST_BYTES = 256 * 1024 * 1024
# A change of one of these fields prints a line. Changes of the load appear only with `--json`.
_SHOWN = ("address", "ports", "serving", "health", "phase", "weight", "machine")


def run(session: Context, path: str) -> int:
    """Print the changes of the name at `path` until the user presses Ctrl-C. Then return 0.

    Raises `CommandFailed` if the portal rejects the request, or if the name no longer exists.
    """
    session.client.get(path)  # reports a wrong name or token like other commands
    watching = _Watching(json=session.json)
    pause = _FIRST_PAUSE_S
    try:
        while True:
            try:
                options = {"max_size": _MOST_BYTES, "compression": "deflate"}
                with sockets.dialled(session, f"/ws{path}", what="watches of names", **options) as socket:
                    while True:
                        watching.take(json.loads(socket.recv(_SILENCE_S)))
                        pause = _FIRST_PAUSE_S
            except ConnectionClosed as closed:
                why = _ended(closed)
            except TimeoutError:
                why = f"the portal sent nothing for {_SILENCE_S:g} s, so borgctl opens a new connection"
            except CommandFailed as failed:
                if not failed.passing:
                    raise
                why = failed.detail
            output.remark(f"{why.rstrip('.')}. Trying again in {pause:g} s.")
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 2)
    except KeyboardInterrupt:
        return 0


def _ended(closed: ConnectionClosed) -> str:
    """Return why the portal closed the connection, if another attempt may succeed. Raises `CommandFailed` otherwise."""
    code = closed.rcvd.code if closed.rcvd is not None else 0
    reason = closed.rcvd.reason if closed.rcvd is not None else ""
    if code in sockets.CODES and code not in sockets.PASSING:
        problem = f"the portal rejected the watch ({sockets.CODES[code]}); check the name and your permissions"
        raise CommandFailed(sockets.CODES[code], reason or problem)
    return f"the connection to the portal ended ({reason or code})"


class _Watching:
    """Compares new endpoints of a name with the endpoints that were printed before, and prints what has changed."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._known: dict[str, dict[str, Any]] = {}
        self._fails_open: bool | None = None

    def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "alive":
            return
        if self._json:
            output.as_json_line(message)
        elif message["type"] == "state":
            state = message["state"]
            endpoints = state.get("endpoints", [state])
            gone = set(self._known) - {one["name"] for one in endpoints}
            self._show(state, endpoints, sorted(gone))
        elif message["type"] == "change":
            self._show(message["facts"], message["changed"], message["gone"])
        else:
            self._show({}, [], sorted(self._known))

    def _show(self, facts: dict[str, Any], endpoints: list[dict[str, Any]], gone: list[str]) -> None:
        at = output.when(datetime.now(UTC).isoformat())
        for name in gone:
            if self._known.pop(name, None) is not None:
                _line(at, name, "gone")
        for one in endpoints:
            before = self._known.get(one["name"])
            self._known[one["name"]] = one
            if before is None or any(before[what] != one[what] for what in _SHOWN):
                serving = "serving" if one["serving"] else "not serving"
                health = one["health"] if one["address"] else one["state"]
                busy = f"weight {one['weight']}", f"load {output.share(one['load'])}"
                _line(at, one["name"], _where(one), serving, health, *busy)
        fails_open = facts.get("fail_open", False)
        if fails_open != self._fails_open and (fails_open or self._fails_open is not None):
            state = "no task serves, so clients get all tasks" if fails_open else "tasks serve again"
            _line(at, facts.get("name", ""), state)
        self._fails_open = fails_open


def _where(one: dict[str, Any]) -> str:
    host = f"[{one['address']}]" if ":" in one["address"] else one["address"]
    ports = one["ports"]
    if not host:
        return "-"
    if len(ports) == 1:
        return f"{host}:{next(iter(ports.values()))}"
    return ",".join(f"{name}={host}:{port}" for name, port in ports.items()) or host


def _line(*parts: str) -> None:
    output.write("  ".join(output.printable(part) for part in parts) + "\n", flush=True)
