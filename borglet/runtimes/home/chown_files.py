"""Give the files of a task to its new user, and no other files.

A task may get a new user if the runtime or settings changed. Its files may be hostile: links, other tasks' files under
a second name, folders of any depth. So this module opens each file without following links, checks it, and changes its
owner through the same descriptor.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from borglet.runtimes.measuring.disk_usage import Folder

_THING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def hand_over(folder: Path, owner: tuple[int, int], *, former: int | None = None, itself: bool = True) -> None:
    """Change the owner of the files in a folder from `former` (None: the folder's owner) to `owner` (user, group). This
    call blocks.

    Some files stay unchanged: links, files of other users, and files with several names, which may belong to another
    task. If `itself` is true, the folder itself is changed last, so that an interrupted call can be repeated. Raises
    OSError if an owner cannot be changed.
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
    """Change the owner of one entry if it belongs to `former`. Return whether it is a folder."""
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
