"""Delete the files of removed tasks. A hostile task may have made these files hard to delete.

    home/trash/<name>    files to delete, moved here by a rename

The files may form a very deep tree, with links, mounts, or folders that their owner cannot enter. This module first
moves every inner folder to the top of the trash, so that no path is long. A rename follows no link and never leaves the
file system.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def throw_away(path: Path, trash: Path) -> None:
    """Move the file or folder `path` into the trash, which is on the same file system. Raises OSError if the rename
    fails.
    """
    os.rename(path, trash / f"{path.name}.{time.time_ns()}")


def empty(trash: Path, *, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Delete everything in the trash, folder by folder. Stop early if the function `goes_on` returns False.

    If an entry cannot be deleted, the function writes a log line. The next call tries again.
    """
    top = os.open(trash, _FOLDER)
    try:
        pending = os.listdir(top)
        while pending and goes_on():
            name = pending.pop()
            try:
                pending += _delete(top, name)
            except FileNotFoundError:
                continue  # another thread has deleted it
            except OSError as error:
                log.warning("cannot delete %s: %s", trash / name, error)
    finally:
        os.close(top)


def _delete(top: int, name: str) -> list[str]:
    """Delete the entry `name` of the trash. Move the folders inside the entry to the top of the trash, and return their
    new names. `top`: a descriptor of the trash.
    """
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return []
    _open_up(top, name)
    folder = os.open(name, _FOLDER, dir_fd=top)
    moved: list[str] = []
    try:
        with os.scandir(folder) as entries:
            listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_folder in listed:
            if not is_folder:
                os.unlink(inner, dir_fd=folder)
                continue
            _open_up(folder, inner)
            new = f"{len(moved)}.{os.fstat(folder).st_ino}.{time.time_ns()}"
            os.rename(inner, new, src_dir_fd=folder, dst_dir_fd=top)
            moved.append(new)
    except OSError:
        if not moved:
            raise
        return [*moved, name]  # the moved folders are deleted next, and then this one is tried again
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)
    return moved


def _open_up(parent: int, name: str) -> None:
    """Give the owner of a folder access to it, because a task may have removed this permission. Do nothing for root."""
    if os.geteuid() == 0:
        return
    try:
        os.chmod(name, 0o700, dir_fd=parent)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
