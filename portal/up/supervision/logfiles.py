"""One log file per process. The supervisor rotates the file, and the process does not notice.

Each process appends directly to its own file. There is no pipe to the supervisor, so a process can still write when the
supervisor has ended. Rotation copies the file and then empties it. Lines that are written between the two steps are
lost.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LogFile:
    """The log file of one process, `NAME.log`, and at most `kept` older log files. `NAME.log.1` is the newest."""

    path: Path
    max_bytes: int = 16 * 2**20
    kept: int = 3

    def open(self) -> int:
        """Open the file for appending and return its descriptor. The caller closes the descriptor."""
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def rotate(self) -> bool:
        """Rotate the file if it has reached its largest size. Return whether it was rotated."""
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
        """Return the last `lines` lines of the file, for a message about a failed process."""
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
