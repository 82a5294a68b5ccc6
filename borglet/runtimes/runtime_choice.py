"""Choose the runtime of a real machine, from the options of its operator and the features of the machine.

oci       containers; if the machine does not support them, the Borglet does not start
process   ordinary processes
auto      containers if the machine supports them, otherwise processes; the log and the attributes give the reason
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from borglet.machine_specs import BadMachine
from borglet.runtimes.base import task_users
from borglet.runtimes.base.networks import parse_network
from borglet.runtimes.home.logfiles import LogRetention
from borglet.runtimes.home.supervised_runtime import SupervisedRuntime
from borglet.runtimes.oci.oci import FIRST_UID, UIDS, OciRuntime, OciSettings, Unavailable
from borglet.runtimes.process import ProcessRuntime, ProcessSettings

log = logging.getLogger(__name__)

_LARGEST_UID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RuntimeWishes:
    """The options of the command line that choose the runtime and set how the runtime runs tasks."""

    runtime: str = "auto"
    task_user: str = ""  # process: user of all tasks whose job file names none; empty: one user per tenant
    task_users: frozenset[str] = frozenset()  # users that job files may name
    first_uid: int = FIRST_UID  # first number of the users of tasks (oci) or of tenants (process)
    uids: int = UIDS  # number of these users
    devices: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # oci: accelerator -> device nodes
    logs: LogRetention = field(default_factory=LogRetention)
    network: str = ""  # oci: addresses of tasks with their own network, 10.20.30.0/24; empty: no such addresses


def open_runtime(home: Path, wishes: RuntimeWishes) -> SupervisedRuntime:
    """Open and return the runtime. Raises `BadMachine` if the machine cannot run the required containers."""
    reason = "chosen"
    network = parse_network(wishes.network)
    if wishes.runtime != "process":
        try:
            return OciRuntime(
                home,
                OciSettings(
                    users=wishes.task_users,
                    first_uid=wishes.first_uid,
                    uids=wishes.uids,
                    devices=wishes.devices,
                    network=network,
                    retention=wishes.logs,
                ),
            )
        except Unavailable as error:
            if wishes.runtime == "oci":
                raise BadMachine(f"runtime: this machine cannot use oci: {error}") from error
            log.warning("tasks run as ordinary processes, not in containers: %s", error)
            reason = error.code
    per_tenant = not wishes.task_user and task_users.may_become_any(home, wishes.first_uid, wishes.uids)
    return ProcessRuntime(
        home,
        ProcessSettings(
            default_user="" if per_tenant else _task_user(home, wishes),
            first_uid=wishes.first_uid,
            uids=wishes.uids if per_tenant else 0,
            users=wishes.task_users,
            reason=reason,
            retention=wishes.logs,
        ),
    )


def _task_user(home: Path, wishes: RuntimeWishes) -> str:
    user = wishes.task_user or task_users.task_user(home)
    if os.geteuid() == 0 and not user:
        log.warning(
            "tasks run as root, because other users cannot reach %s, or this process cannot switch to them; move the"
            " home to a folder that every user can enter, or set BORGLET_TASK_USER to a user",
            home,
        )
    elif user and not wishes.task_user:
        log.warning(
            "tasks of all tenants run as user %s and may signal each other, because this process cannot switch to the"
            " users %d-%d (BORGLET_TASK_UIDS); map these numbers in its user namespace",
            user,
            wishes.first_uid,
            wishes.first_uid + wishes.uids - 1,
        )
    return user


def parse_uids(text: str) -> tuple[int, int]:
    """Return the first number and the size of a range of user numbers, such as `200000-265535`. Raises `BadMachine` if
    the text is not such a range.
    """
    match = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", text.strip())
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1000 <= first <= last <= _LARGEST_UID:
        raise BadMachine(
            f"task-uids: {text!r} is not a range of user numbers; give FIRST-LAST, two numbers from 1000 to"
            f" {_LARGEST_UID}"
        )
    return first, last - first + 1


def parse_devices(text: str) -> dict[int, tuple[str, ...]]:
    """Parse the device files of each accelerator: `0=/dev/nvidia0+/dev/nvidiactl,1=/dev/x`. Raises `BadMachine` if a
    part has another form.
    """
    devices = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        number, _, paths = part.partition("=")
        nodes = tuple(paths.split("+"))
        if not number.strip().isdecimal() or not all(re.fullmatch(r"/dev/[\w./-]+", node) for node in nodes):
            raise BadMachine(
                f"devices: {part!r} does not name a device; give NUMBER=/dev/FILE, and join several files by +, for"
                " example 0=/dev/nvidia0+/dev/nvidiactl"
            )
        devices[int(number)] = nodes
    return devices
