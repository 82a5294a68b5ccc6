"""Files of a task that runs as another user from now on: handed over to it, and nothing else with them.

A task had another user under another runtime, or before the operator's settings changed. What it left may be hostile:
links, names of other tasks' files, folders as deep as anybody likes. So each thing is opened without following links,
looked at, and handed over by that very descriptor.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from borglet.runtimes.measuring.diskwalk import Folder

_THING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def hand_over(folder: Path, owner: tuple[int, int], *, former: int | None = None, itself: bool = True) -> None:
    """Give what belongs to user `former` (None: the folder's present owner) to `owner` (user, group). Blocks. Raises
    OSError.

    Left alone: files of several names, one of which may be another task's, links, and what others own. The folder
    itself comes last, if at all: a handover that is interrupted begins again.
    """
    if former is None:
        former = os.stat(folder, follow_symlinks=False).st_uid
    pending = [Folder(None, str(folder))]
    while pending:
        inside = pending.pop()
        try:
            descriptor = inside.open()
        except (FileNotFoundError, NotADirectoryError):
            continue  # another process of that user took it away
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if _take(descriptor, entry.name, former, owner):
                        pending.append(inside.below(entry.name))
        finally:
            os.close(descriptor)
    if itself:
        os.chown(folder, *owner, follow_symlinks=False)


def _take(inside: int, name: str, former: int, owner: tuple[int, int]) -> bool:
    """Whether it is a folder."""
    try:
        thing = os.open(name, _THING, dir_fd=inside)
    except FileNotFoundError:
        return False
    try:
        about = os.fstat(thing)
        is_folder = stat.S_ISDIR(about.st_mode)
        handed = is_folder or (about.st_nlink == 1 and not stat.S_ISLNK(about.st_mode))
        if about.st_uid == former and handed:
            os.chown(f"/proc/self/fd/{thing}", *owner)
        return is_folder
    finally:
        os.close(thing)
