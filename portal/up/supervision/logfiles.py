"""One rotated log file a process, which no process notices.

Each process appends straight to its own file: there is no pipe to the supervisor, so killing the supervisor
can't break or block the processes. The price is rotation by copy and truncate: what a process writes between
the copy and the cut, microseconds apart, is lost. O_APPEND makes the writes after the cut start at zero.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LogFile:
    """`NAME.log` and its `kept` older ones, `NAME.log.1` the youngest of them."""

    path: Path
    max_bytes: int = 16 * 2**20
    kept: int = 3

    def open(self) -> int:
        """A descriptor that appends; the caller closes it."""
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def rotate(self) -> bool:
        """Rotate if the file is full; whether it was."""
        try:
            if self.path.stat().st_size < self.max_bytes:
                return False
        except FileNotFoundError:
            return False
        for number in range(self.kept, 1, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        shutil.copy2(self.path, self._numbered(1))
        os.truncate(self.path, 0)
        return True

    def tail(self, lines: int) -> str:
        """The last lines, for a message about a process that failed."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 16384))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
