"""Read and write the files of a task's control groups. This module imports few other modules, so that supervisors,
which use it, need little memory.

`Groups` is a dict with the control groups of one task: controller name -> directory. With version 2 of control groups,
the dict has one entry, `unified`.
"""

from __future__ import annotations

import errno
import os
import signal

Groups = dict[str, str]
# The kernel charges memory to a group in portions of up to this size, so the peak can be smaller than the limit.
CHARGE_BYTES = 2**20


def read_text(directory: str, name: str) -> str:
    """Return the content of the file `name` of a control group. Raises FileNotFoundError if the group was removed, and
    OSError if the file cannot be read for another reason.
    """
    try:
        with open(os.path.join(directory, name)) as file:
            return file.read()
    except OSError as error:
        raise _as_absent(error) from None


def write_text(directory: str, name: str, value: str) -> None:
    """Write `value` to the file `name` of a control group. Raises FileNotFoundError if the group was removed, and
    OSError if the kernel rejects the value.
    """
    try:
        with open(os.path.join(directory, name), "w") as file:
            file.write(value)
    except OSError as error:
        raise _as_absent(error) from None


def _as_absent(error: OSError) -> OSError:
    """Return the error to raise: FileNotFoundError if `error` means that the group was removed after its file was
    opened, otherwise `error` itself.
    """
    if error.errno == errno.ENODEV:
        return FileNotFoundError(errno.ENOENT, "the control group was removed")
    return error


def read_if_present(directory: str, name: str) -> str:
    """Return the content of a file of a group, or "" if the group or the file does not exist. Raises OSError if the
    file cannot be read for another reason.
    """
    try:
        return read_text(directory, name) if directory else ""
    except FileNotFoundError:
        return ""


def read_number(directory: str, name: str) -> int:
    """Return the number in a file of a control group. Return 0 if the group or the file does not exist, or if the file
    contains `max`.
    """
    text = read_if_present(directory, name).strip()
    return int(text) if text.isdigit() else 0


def read_fields(directory: str, name: str) -> dict[str, int]:
    """Return the content of a control group's file, which has lines such as `key 12`, as a dict. Return an empty dict
    if the group or the file does not exist.
    """
    lines = read_if_present(directory, name).splitlines()
    return {key: int(value) for key, _, value in (line.partition(" ") for line in lines)}


def join(groups: Groups) -> None:
    """Move the calling process into the groups. The process must have only one thread. Raises OSError if the kernel
    does not allow this.
    """
    for controller, directory in groups.items():
        # A thread that moves itself through `tasks` takes no machine-wide lock, as `cgroup.procs` does.
        write_text(directory, "cgroup.procs" if controller == "unified" else "tasks", "0")


def allow_devices(groups: Groups, rules: list[str]) -> None:
    """Allow the task only the devices in `rules` (such as `c 1:3 rw`). With version 2 of control groups, do nothing.
    Raises OSError if the kernel rejects a rule.
    """
    directory = groups.get("devices", "")
    if not directory:
        return
    write_text(directory, "devices.deny", "a")
    for rule in rules:
        write_text(directory, "devices.allow", rule)


def members(groups: Groups) -> set[int]:
    """Return the pids of all processes in the groups."""
    return {int(pid) for directory in groups.values() for pid in read_if_present(directory, "cgroup.procs").split()}


def kill(groups: Groups) -> set[int]:
    """Send SIGKILL to all processes in the groups, and return their pids. Forks are forbidden before the kill."""
    for directory in groups.values():
        for name, value in (("pids.max", "0"), ("cgroup.kill", "1")):
            if os.path.exists(os.path.join(directory, name)):
                try:
                    write_text(directory, name, value)
                except FileNotFoundError:  # the group is removed, so it has no members
                    continue
    found = members(groups)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return found


def memory_directory(groups: Groups) -> str:
    return groups.get("memory") or groups.get("unified", "")


def was_at_limit(groups: Groups) -> bool:
    """Return whether the task ever reached its own memory limit, or the memory limit of its alloc."""
    directory = memory_directory(groups)
    around = (directory, os.path.dirname(directory)) if directory else ()
    if "memory" in groups:
        return any(map(_met_limit, around))
    return any(read_fields(one, "memory.events.local").get("oom", 0) for one in around)


def _met_limit(directory: str) -> bool:
    """Return whether a control group of version 1 reached its memory limit. It did if the kernel counted failed
    allocations, or if its highest usage is equal to the limit.

    The highest usage is needed because new kernels do not count failures at the limit that includes swap.
    """
    limit = read_number(directory, "memory.limit_in_bytes")
    peak = read_number(directory, "memory.max_usage_in_bytes")
    return read_number(directory, "memory.failcnt") > 0 or 0 < limit <= peak + CHARGE_BYTES


def oom_kills(groups: Groups) -> int:
    """Return how many processes of the task the kernel has killed because the task reached a memory limit or the
    machine had no memory left.
    """
    name = "memory.oom_control" if "memory" in groups else "memory.events"
    return read_fields(memory_directory(groups), name).get("oom_kill", 0)


def peak_memory(groups: Groups) -> int:
    name = "memory.max_usage_in_bytes" if "memory" in groups else "memory.peak"
    return read_number(memory_directory(groups), name)


def memory_limit(groups: Groups) -> int:
    name = "memory.limit_in_bytes" if "memory" in groups else "memory.max"
    return read_number(memory_directory(groups), name)


def _processes_directory(groups: Groups) -> str:
    return groups.get("pids") or groups.get("unified", "")


def processes_limit(groups: Groups) -> int:
    """Return the limit on the number of processes and threads in the groups; 0 for no limit."""
    return read_number(_processes_directory(groups), "pids.max")


def limit_processes(groups: Groups, count: int) -> None:
    """Limit the number of processes and threads in the groups. Raises OSError if the kernel rejects the limit."""
    write_text(_processes_directory(groups), "pids.max", str(count))


def refused_forks(groups: Groups) -> int:
    return read_fields(_processes_directory(groups), "pids.events").get("max", 0)


def watch_oom(groups: Groups) -> int:
    """Return a file descriptor that becomes readable when the groups run out of memory. Return -1 for control groups of
    version 2, and for version 1 if the kernel does not report this event.
    """
    directory = groups.get("memory", "")
    if not directory or not os.path.exists(os.path.join(directory, "cgroup.event_control")):
        return -1
    event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    control = os.open(os.path.join(directory, "memory.oom_control"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        write_text(directory, "cgroup.event_control", f"{event} {control}")
    except OSError:  # the kernel has no such event: the next sample finds the kill
        os.close(event)
        return -1
    finally:
        os.close(control)
    return event


def remove(groups: Groups) -> bool:
    """Remove the groups of a task. Return False if a process still uses one of them."""
    gone = True
    for directory in groups.values():
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError:
            gone = False
    return gone


def mebibytes(count: int) -> str:
    """Return a number of bytes as a text, for example `64 MiB`."""
    return f"{count / 2**20:.4g} MiB"
