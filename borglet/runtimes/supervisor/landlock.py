"""Restrict a process and its children to their own TCP ports. This uses Landlock, a function of the Linux kernel.

Tasks on one machine share its address (§8.1), and each task gets ports as a resource. This module imports few others,
because supervisors use it and must stay small.
"""

from __future__ import annotations

import ctypes
import os

from borglet.runtimes.supervisor.exec_task import prctl

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = (444, 445, 446)  # numbers of system calls, the same on all architectures
_VERSION = 1  # flag of landlock_create_ruleset
_BIND_TCP = 1  # LANDLOCK_ACCESS_NET_BIND_TCP
_NET_PORT = 2  # LANDLOCK_RULE_NET_PORT
_KNOWS_PORTS = 4  # the first version that supports ports
_EPHEMERAL = 0  # allows bind(0), for which the kernel chooses a port that no task has
_NO_NEW_PRIVS = 38


class _Ruleset(ctypes.Structure):
    _fields_ = (("access_fs", ctypes.c_uint64), ("access_net", ctypes.c_uint64))


class _Port(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("port", ctypes.c_uint64))


def knows_ports() -> bool:
    """Return whether this kernel can restrict processes to TCP ports."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)) >= _KNOWS_PORTS
    except OSError:
        return False


def keep_to_ports(ports: list[int]) -> None:
    """From now on, this process and its descendants may bind only these TCP ports, and TCP ports that the kernel
    chooses. UDP ports are not restricted.

    Raises OSError if the kernel does not support this restriction.
    """
    wanted = _Ruleset(0, _BIND_TCP)
    rules = _call(_CREATE_RULESET, ctypes.byref(wanted), ctypes.c_size_t(ctypes.sizeof(wanted)), ctypes.c_uint32(0))
    try:
        for port in (_EPHEMERAL, *ports):
            rule = _Port(_BIND_TCP, port)
            _call(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_NET_PORT), ctypes.byref(rule), ctypes.c_uint32(0))
        if os.geteuid() != 0:
            prctl(_NO_NEW_PRIVS, 1)
        _call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
