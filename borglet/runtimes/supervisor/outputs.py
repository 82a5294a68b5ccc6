"""Copy the output of a task from two pipes to log files. The task's supervisor uses this module, so it imports few
others.
"""

from __future__ import annotations

import os
import select
import time

from borglet.runtimes.supervisor.exec_task import TaskLaunch
from borglet.runtimes.supervisor.logwriter import LogWriter, TokenBucket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

READ_BYTES = 65536
# The most output that is read after the task's end, because another process may keep the pipe open.
DRAIN_BYTES = 4 * 2**20


class Outputs:
    """Copies the output of one task to its log files. While this class reads the pipes with the output, the pipes are
    registered in `poll`.
    """

    def __init__(self, launch: TaskLaunch, poll: select.poll) -> None:
        self._launch, self._poll = launch, poll
        self._streams: dict[int, LogWriter] = {}
        self._valve = TokenBucket(launch.log_bytes_s, now=time.monotonic())
        self._paused = False  # the pipes are not read, so the task waits

    def keep(self, *, stdout: int, stderr: int) -> None:
        """Begin to copy the output that the task writes to two pipes. `stdout`, `stderr`: file descriptors of the
        pipes.
        """
        launch = self._launch
        directory = os.open(launch.log_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        for stream, reader in (("stdout", stdout), ("stderr", stderr)):
            os.set_blocking(reader, False)
            self._streams[reader] = LogWriter(
                directory, stream, file_bytes=launch.log_file_bytes, file_s=launch.log_file_s, keep=launch.log_files
            )
            self._poll.register(reader, select.POLLIN)

    def pause(self) -> float:
        """Stop reading the output if the task has printed more than its limit. Return for how many seconds reading
        stops; 0 if it continues.
        """
        pause_s = self._valve.wait_s(now=time.monotonic())
        self.listen(pause_s == 0.0)
        return pause_s

    def listen(self, wanted: bool) -> None:
        if wanted != self._paused:
            return
        self._paused = not wanted
        for reader in self._streams:
            if wanted:
                self._poll.register(reader, select.POLLIN)
            else:
                self._poll.unregister(reader)

    def copy(self, ready: Collection[int] | None = None) -> None:
        """Copy a part of the waiting output to the log files. `ready`: the pipes to read (file descriptors); None: both
        pipes.
        """
        for reader in [reader for reader in self._streams if ready is None or reader in ready]:
            self._copy(reader)

    def _copy(self, reader: int) -> int:
        try:
            data = os.read(reader, READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._streams[reader].write(data)
            self._valve.passed(len(data), now=time.monotonic())
        else:
            self._poll.unregister(reader)
            self._streams.pop(reader).close()
            os.close(reader)
        return len(data)

    def finish(self) -> None:
        """Copy the last output and close the files."""
        for reader in list(self._streams):
            left = DRAIN_BYTES
            while left > 0 and (count := self._copy(reader)):
                left -= count
        for writer in self._streams.values():
            writer.close()
