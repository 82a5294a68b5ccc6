"""Shows the output of a command on the whole screen, again and again, until the user presses Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime

from portal.cli.failure import CommandFailed, bad_usage

EVERY_S = 2.0
# The alternate screen leaves the earlier content of the terminal as it was.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class _Page(io.StringIO):
    """Collects the output of a command that writes for a terminal."""

    def isatty(self) -> bool:
        return True


def watch(show: Callable[[], object], *, json_wanted: bool) -> None:
    """Call `show`, which prints to standard output, every `EVERY_S` seconds, until Ctrl-C. While the portal is away,
    the last output stays on the screen, with the reason above it.

    Raises `CommandFailed` if standard output is not a terminal, or if the portal rejects the request.
    """
    if json_wanted:
        raise bad_usage("--watch prints for a terminal; leave --json out", watch="not with --json")
    if not sys.stdout.isatty():
        raise bad_usage("--watch needs a terminal as standard output; leave it out", watch="needs a terminal")
    terminal, text = sys.stdout, ""
    terminal.write(_ENTER)
    try:
        while True:
            trouble = ""
            try:
                text = _printed(show)
            except CommandFailed as failed:
                if not (failed.passing and text):
                    raise
                trouble = failed.detail
            terminal.write(_drawn(text, trouble))
            terminal.flush()
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return
    finally:
        terminal.write(_LEAVE)
        terminal.flush()


def _printed(show: Callable[[], object]) -> str:
    page = _Page()
    # Remarks of the client, for example that it tries again, would appear in the middle of the screen.
    with contextlib.redirect_stdout(page), contextlib.redirect_stderr(io.StringIO()):
        show()
    return page.getvalue()


def _drawn(text: str, trouble: str) -> str:
    """Return what to write so that the screen shows the text. Lines that do not fit on the screen are left out."""
    rows = shutil.get_terminal_size().lines
    head = f"{datetime.now():%H:%M:%S}  every {EVERY_S:g} s, Ctrl-C to end"
    lines = [f"{head}: {trouble}" if trouble else head, "", *text.splitlines()]
    if len(lines) > rows:
        lines = [*lines[: rows - 1], f"… {len(lines) - rows + 1} more lines"]
    return _HOME + "\n".join(f"{line}{_END_OF_LINE}" for line in lines) + _END_OF_SCREEN
