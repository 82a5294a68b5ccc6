"""Give the files of a task to its new user, and no other files.

A task had another user under another runtime, or before the operator's settings changed. Its files may be hostile:
links, names of other tasks' files, folders of any depth. So each file is opened without following links, checked, and
handed over through the same descriptor.
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

    Unchanged: links, files of other users, and files with several names, one of which may be another task's. The folder
    itself comes last, if at all, so that an interrupted handover begins again.
    """
    if former is None:
        former = os.stat(folder, follow_symlinks=False).st_uid
    pending = [Folder(None, str(folder))]
    while pending:
        inside = pending.pop()
        try:
            descriptor = inside.open()
        except (FileNotFoundError, NotADirectoryError):
            continue  # another process of that user removed it
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
    """Hand over one entry. Return whether it is a folder."""
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
