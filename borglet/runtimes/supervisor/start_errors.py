"""The messages for commands and folders with which a task cannot start. Pure."""

from __future__ import annotations


def cannot_enter(directory: str, reason: str) -> str:
    """Return the error message for a working directory that the task cannot enter."""
    return f"cannot enter working directory {directory}: {reason}; correct working_dir in the job file"


def cannot_run(command: str, reason: str) -> str:
    """Return the error message for a command that the kernel does not execute."""
    return f"cannot run command {command!r}: {reason}; give a program that the task's user can execute"


def not_found(command: str, path: str) -> str:
    """Return the error message for a command that does not exist. `path`: the task's PATH."""
    where = "" if "/" in command else f" in PATH {path}"
    return f"command {command!r} not found{where}; correct the command, or add a package that contains it"
