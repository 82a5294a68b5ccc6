"""Write the exit of a task to exit.json. The task's supervisor uses this module, so it imports few others, and not
`json`, whose import takes 8 ms.
"""

from __future__ import annotations

import os

from borglet.runtimes.cgroups import cgroupfs

# The largest size of an exit record.
EXIT_BYTES = 16 * 1024


def reserve_exit(directory: str) -> None:
    """Reserve disk space for exit.json. Without this file, for example on a full disk, a task that succeeded would run
    again.
    """
    path = os.path.join(directory, "exit.json.new")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.write(file, b" " * EXIT_BYTES)
    os.close(file)


def write_exit(directory: str, fields: dict[str, object]) -> None:
    """Write exit.json to the disk, so that a power loss does not destroy it. This is the last step of a supervisor.
    Raises OSError if the file cannot be written.
    """
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open("exit.json.new", flags, 0o600, dir_fd=folder)
    os.ftruncate(file, os.write(file, to_json(fields).encode()))
    os.fsync(file)
    os.rename("exit.json.new", "exit.json", src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def out_of_memory(groups: cgroupfs.Groups, *, ram_limit: int) -> dict[str, object]:
    """Return the fields `cause` and `detail` for the exit of a task that ended because the kernel killed its processes
    to free memory. `ram_limit`: the task's memory limit in bytes.
    """
    limit = cgroupfs.memory_limit(groups) or ram_limit
    used, kills = cgroupfs.peak_memory(groups), cgroupfs.oom_kills(groups)
    figures = f"the task's RAM limit is {cgroupfs.mebibytes(limit)}"
    figures += f", and it used {cgroupfs.mebibytes(used)}" if used else ""
    ended = f"the kernel killed {kills} of the task's processes"
    if not cgroupfs.was_at_limit(groups):
        return {"cause": "machine-short", "detail": f"the machine ran out of memory: {ended}; {figures}"}
    return {"cause": "out-of-memory", "detail": f"{figures}; {ended}; raise the RAM limit"}


def to_json(fields: dict[str, object]) -> str:
    """Return a flat dict of numbers and texts as JSON."""
    return "{" + ", ".join(f'"{name}": {_json_value(value)}' for name, value in fields.items()) + "}"


def _json_value(value: object) -> str:
    if not isinstance(value, str):
        return repr(value)
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\u{ord(c):04x}" for c in value if ord(c) < 65536)
    return f'"{plain}"'
