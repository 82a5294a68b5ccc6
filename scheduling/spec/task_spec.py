"""The spec of one task: the `task` part of a job file, parsed and checked. Pure.

The parser does not stop at the first problem. It collects all problems, each with its path in the job file (such as
`task.limit.cpu`). Quantities become integers over `quota.vocabulary.resources.AXIS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from borglet import variables
from borglet.messages import LOCKS_SINCE, NOTHING, RESTART, SIGNAL, TIME_LIMITS_SINCE, HealthCheck, Slack
from quota.vocabulary.resources import ACCELERATORS, CPU, DEVICE, NAMES, PORTS, QuantityError, Vector, parse_quantity
from scheduling.core.vocabulary.requirement import PROTOCOL, Constraint, Relation
from scheduling.spec.field_errors import Problems, convert
from scheduling.spec.masking import MASK
from scheduling.spec.schema import (
    LATEST,
    LOCK_NAME,
    LOCK_NAME_RULE,
    MAX_LOCK_NAME,
    ConfigUse,
    HealthFile,
    Restart,
    SecretUse,
    TaskFields,
    TaskFile,
)

# The default limit of a task. It is enough for a small server in any language.
DEFAULT_LIMIT: dict[str, int] = {"cpu": 100, "ram": 128 * 2**20, "disk": 100 * 2**20}

MAX_COMMAND_BYTES = 64 * 1024
MAX_ENV_BYTES = 64 * 1024
MAX_PORTS = 64
MAX_CONSTRAINTS = 32
MAX_PACKAGES = 64
MAX_FLAGS = 256
MAX_SECRETS = 32
MAX_CONFIGS = 16
MAX_LOCKS = 16
MAX_WEIGHT = 65_535  # of an SRV record (RFC 2782)

_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,127}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_PORT_NAME = re.compile(r"[a-z]([-a-z0-9]{0,13}[a-z0-9])?")  # RFC 6335: a service name has 15 characters at most
_USER = re.compile(r"[a-z_][-a-z0-9_]{0,31}")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@:+-]{0,254}")
_OWN_VARIABLES = ("PATH", "HOME", "TMPDIR", "LANG")
_SECRET_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

# Older Borglets do not support packages, roots and networks, and would run such a task as a plain process. Borglets
# before protocol 3 would ignore its time limit. The link stores the version of each machine as an attribute.
SPEAKS = Constraint(PROTOCOL, Relation.AT_LEAST, "2")
LIMITS_TIME = Constraint(PROTOCOL, Relation.AT_LEAST, str(TIME_LIMITS_SINCE))
# Only Borglets that deliver secrets have this attribute, and only if the machine has a file system in memory.
DELIVERS_SECRETS = Constraint("secrets", Relation.EQUAL, "memory")
# Older Borglets deliver secrets, but no config files. They do not have this attribute.
DELIVERS_CONFIGS = Constraint("configs", Relation.EQUAL, "memory")
# The socket for locks is in the same folder in memory as secrets.
OFFERS_LOCKS = Constraint(PROTOCOL, Relation.AT_LEAST, str(LOCKS_SINCE))


class TaskSpec(TaskFields, frozen=True, kw_only=True):
    """The spec of a task, normalised. `limit`: an amount of each resource, including the number of ports. `weight`:
    how many clients DNS sends to this task, relative to other tasks; 0: only if no other task can serve.
    """

    limit: Vector
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    ports: tuple[str, ...] = ()
    health: HealthCheck | None = None
    constraints: tuple[Constraint, ...] = ()
    packages: tuple[str, ...] = ()
    flags: dict[str, str | bool] = {}
    secrets: tuple[SecretUse, ...] = ()
    configs: tuple[ConfigUse, ...] = ()
    plain_env: tuple[str, ...] = ()
    locks: tuple[str, ...] = ()

    def demands(self) -> tuple[Constraint, ...]:
        """Return the constraints of a task, and the constraints that follow from its packages, secrets, config files,
        locks, root file system, network and cores.
        """
        implied = []
        if self.locks:
            implied.append(OFFERS_LOCKS)
        elif self.max_run_s is not None:
            implied.append(LIMITS_TIME)
        elif self.packages or self.root != "host" or self.network != "host":
            implied.append(SPEAKS)
        if self.secrets or self.locks:
            implied.append(DELIVERS_SECRETS)
        if self.configs:
            implied.append(DELIVERS_CONFIGS)
        if self.root == "packages":
            implied.append(Constraint("runtime", Relation.EQUAL, "oci"))
        if self.network == "own":
            implied.append(Constraint("isolation.network", Relation.EQUAL, "own"))
        if self.whole_cores:
            implied.append(Constraint("isolation.cores", Relation.NOT_EQUAL, "none"))
        return tuple(sorted({*self.constraints, *implied})) if implied else self.constraints

    @property
    def argv(self) -> list[str]:
        """Return the command and its flags, sorted by name. A flag is `--name=value`, or `--name` if its value is
        true. If the value is false, the flag is left out.
        """
        flags = [
            f"--{name}" if value is True else f"--{name}={value}"
            for name, value in sorted(self.flags.items())
            if value is not False
        ]
        return [*self.command, *flags]

    def to_json(self, *, extra: Sequence[str] = ()) -> dict[str, Any]:
        """Return the task in the form of a job file. `read_task` parses the result to an equal spec."""
        return {
            "command": list(self.command),
            "env": dict(sorted(self.env.items())),
            "limit": _limit_json(self.limit, extra),
            "ports": list(self.ports),
            "health": None if self.health is None else _health_json(self.health),
            "constraints": [msgspec.to_builtins(constraint) for constraint in self.constraints],
            "notice_s": self.notice_s,
            "restart": msgspec.to_builtins(self.restart),
            "max_processes": self.max_processes,
            "working_dir": self.working_dir,
            "user": self.user,
            "packages": list(self.packages),
        } | fields_set(self, _LATER)


def fields_set(spec: msgspec.Struct, defaults: Mapping[str, object]) -> dict[str, Any]:
    """Return those fields of a spec that differ from `defaults`, ready for JSON."""
    values = {name: getattr(spec, name) for name in defaults}
    return {name: msgspec.to_builtins(value) for name, value in values.items() if value != defaults[name]}


# Fields that specs of older versions lack. They are written only if they differ from the default, so that the digests
# of stored specs do not change.
_LATER: dict[str, object] = {
    "root": "host",
    "network": "host",
    "slack": Slack(),
    "whole_cores": False,
    "flags": {},
    "weight": 1,
    "max_run_s": None,
    "secrets": (),
    "configs": (),
    "plain_env": (),
    "locks": (),
}


@dataclass(frozen=True, slots=True)
class TaskRole:
    """What is known about a task before its spec is read. `allocation`: the task is an alloc (§2.4), which runs no
    command. `inside`: the task runs in an alloc. `stored`: the spec was accepted before, perhaps by older software that
    checked less. `batch`: the job is not latency-sensitive.
    """

    allocation: bool = False
    inside: bool = False
    stored: bool = False
    batch: bool = False


def read_task(
    given: Any, problems: Problems, path: str, *, extra: Sequence[str] = (), role: TaskRole = TaskRole()
) -> TaskSpec | None:
    """Return the task in `given` (decoded JSON), and add its errors to `problems`. Return None if a required field is
    missing or too many fields have a wrong type.

    `path`: the path of the task in the job file. `extra`: names of the cell's own resources.
    """
    file = convert(given, TaskFile, problems, path)
    if file is None:
        return None
    _check_command(file, problems, path, role)
    _check_env(file.env, problems, f"{path}.env", stored=role.stored)
    _check_flags(file.flags, problems, f"{path}.flags", role)
    ports = _check_ports(file.ports, problems, f"{path}.ports")
    _check_constraints(file.constraints, problems, f"{path}.constraints")
    if role.inside and file.constraints:
        detail = "tasks in an alloc run on the machine of the alloc; put constraints into the alloc set"
        problems.add(f"{path}.constraints", detail)
    _check_restart(file.restart, problems, f"{path}.restart")
    problems.number(f"{path}.notice_s", file.notice_s, 0, 3600)
    _check_max_run(file.max_run_s, problems, f"{path}.max_run_s", role)
    problems.number(f"{path}.max_processes", file.max_processes, 1, 1_000_000)
    problems.number(f"{path}.weight", file.weight, 0, MAX_WEIGHT)
    if role.allocation and file.weight != 1:
        problems.add(f"{path}.weight", "an alloc serves no clients; set weights in the jobs inside the alloc set")
    problems.text(f"{path}.working_dir", file.working_dir, 4096)
    if ".." in file.working_dir.split("/") and not role.stored:
        detail = f"{file.working_dir!r} leaves the task's folder; give a path without '..'"
        problems.add(f"{path}.working_dir", detail)
    if file.user and not _USER.fullmatch(file.user):
        problems.add(f"{path}.user", f"{file.user!r} is not a user name; remove it to run as the default user")
    problems.count(f"{path}.packages", file.packages, MAX_PACKAGES, "packages")
    for number, package in enumerate(file.packages):
        if not _PACKAGE.fullmatch(package):
            detail = f"{package!r} is not a package; write NAME, NAME@TAG or NAME@sha256:…"
            problems.add(f"{path}.packages[{number}]", detail)
    _check_secrets(file, problems, f"{path}.secrets", role)
    _check_configs(file.configs, problems, f"{path}.configs", role)
    problems.count(f"{path}.plain_env", file.plain_env, MAX_FLAGS, "names")
    _check_locks(file.locks, problems, f"{path}.locks", role)
    limit = _read_limit(file.limit, len(ports), problems, f"{path}.limit", extra)
    _check_place(file, limit, problems, path)
    if file.whole_cores and role.batch and not role.stored:
        detail = (
            "only latency-sensitive tasks can have whole cores; set appclass: latency-sensitive, or remove this field"
        )
        problems.add(f"{path}.whole_cores", detail)
    if not role.stored:
        _check_variables(file, problems, path)
        _check_accelerators(limit[ACCELERATORS], problems, f"{path}.limit.accelerators")
    read = {
        "limit": limit,
        "command": tuple(file.command),
        "env": {name: value for name, value in file.env.items() if isinstance(value, str)},
        "ports": ports,
        "health": _read_health(file.health, ports, problems, f"{path}.health"),
        "constraints": tuple(sorted(file.constraints)),
        "packages": tuple(file.packages),
        "flags": {name: _flag(value) for name, value in file.flags.items()},
        "secrets": tuple(file.secrets),
        "configs": tuple(file.configs),
        "plain_env": tuple(sorted(set(file.plain_env))),
        "locks": tuple(sorted(set(file.locks))),
    }
    return TaskSpec(**(msgspec.structs.asdict(file) | read))


def _check_command(file: TaskFile, problems: Problems, path: str, role: TaskRole) -> None:
    if role.allocation:
        if file.command or file.health is not None:
            problems.add(f"{path}.command", "an alloc set runs no command; remove it, and submit a job into the set")
        if file.ports:
            problems.add(f"{path}.ports", "an alloc has no ports; name ports in the jobs inside the alloc set")
        return
    if not file.command or not file.command[0]:
        problems.add(f"{path}.command", "is missing; give the program and its arguments as a list of texts")
    elif sum(len(part.encode()) + 1 for part in file.command) > MAX_COMMAND_BYTES:
        problems.add(f"{path}.command", f"is longer than {MAX_COMMAND_BYTES} bytes; put it into a file")
    for number, part in enumerate(file.command):
        problems.text(f"{path}.command[{number}]", part, MAX_COMMAND_BYTES)


def _check_env(env: dict[str, Any], problems: Problems, path: str, *, stored: bool) -> None:
    size = 0
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            problems.add(f"{path}.{name}", "is not the name of a variable; use letters, digits and underscores")
        if not isinstance(value, str):
            problems.add(f"{path}.{name}", f"{value!r} is not text; put it between quotes")
            continue
        if MASK in value and not stored:
            detail = f"{MASK!r} hides the stored value, and would replace it; give the value itself"
            problems.add(f"{path}.{name}", detail)
        problems.text(f"{path}.{name}", value, MAX_ENV_BYTES)
        size += len(name.encode()) + len(value.encode()) + 2
    if size > MAX_ENV_BYTES:
        problems.add(path, f"has {size} bytes; give at most {MAX_ENV_BYTES}")


def _check_secrets(file: TaskFile, problems: Problems, path: str, role: TaskRole) -> None:
    """Check how a task uses secrets. Whether they exist, and whether the job may use them, is checked at submission."""
    if file.secrets and role.allocation:
        problems.add(path, "an alloc set runs no command; use secrets in the jobs inside the alloc set")
    problems.count(path, file.secrets, MAX_SECRETS, "secrets")
    places: set[tuple[str, str]] = set()
    for number, use in enumerate(file.secrets[:MAX_SECRETS]):
        here = f"{path}[{number}]"
        problems.label(f"{here}.name", use.name)
        if bool(use.file) == bool(use.env):
            problems.add(here, "needs one place for the value; give either file or env")
        if use.file and not _SECRET_FILE.fullmatch(use.file):
            problems.add(f"{here}.file", _not_a_file(use.file))
        if use.env and not _ENV_NAME.fullmatch(use.env):
            problems.add(f"{here}.env", "is not the name of a variable; use letters, digits and underscores")
        if use.env.startswith("BORG_") or use.env in _OWN_VARIABLES:
            problems.add(f"{here}.env", f"{use.env!r} is a name of Borg's own variables; give another name")
        if use.env in file.env:
            problems.add(f"{here}.env", f"{use.env!r} is also in task.env; remove one of the two")
        for field in ("file", "env"):
            place = field, getattr(use, field)
            if place[1] and place in places:
                problems.add(
                    f"{here}.{field}", f"two secrets use the {field} {place[1]!r}; give each secret its own {field}"
                )
            places.add(place)
        _check_version(use.version, problems, f"{here}.version")


def _check_configs(uses: list[ConfigUse], problems: Problems, path: str, role: TaskRole) -> None:
    """Check how a task uses config files. Whether they exist is checked at submission."""
    if uses and role.allocation:
        problems.add(path, "an alloc set runs no command; use config files in the jobs inside the alloc set")
    problems.count(path, uses, MAX_CONFIGS, "config files")
    files: set[str] = set()
    for number, use in enumerate(uses[:MAX_CONFIGS]):
        here = f"{path}[{number}]"
        problems.label(f"{here}.name", use.name)
        if use.file and not _SECRET_FILE.fullmatch(use.file):
            problems.add(f"{here}.file", _not_a_file(use.file))
        elif use.path in files:
            detail = f"two config files use the file {use.path!r}; give each config file its own file"
            problems.add(f"{here}.file", detail)
        files.add(use.path)
        _check_version(use.version, problems, f"{here}.version")
        problems.choice(f"{here}.on_change", use.on_change, (NOTHING, SIGNAL, RESTART))
        if use.version != LATEST and use.on_change in (SIGNAL, RESTART):
            detail = (
                f"version {str(use.version)[:50]} of a file never changes; remove on_change, or give version: {LATEST}"
            )
            problems.add(f"{here}.on_change", detail)


def _not_a_file(name: str) -> str:
    cure = "use letters, digits, '.', '_' and '-', at most 100 characters, no '/' and no '.' at the beginning"
    return f"{name[:100]!r} is not the name of a file; {cure}"


def _check_version(version: int | str, problems: Problems, path: str) -> None:
    """Check the version of a secret or a config file: a number, or `latest`."""
    numbered = isinstance(version, int) and not isinstance(version, bool) and version > 0
    if not numbered and version != LATEST:
        problems.add(path, f"{str(version)[:50]!r} is not a version; give a number or {LATEST}")


def _check_locks(names: list[str], problems: Problems, path: str, role: TaskRole) -> None:
    if names and role.allocation:
        problems.add(path, "an alloc set runs no command; name locks in the jobs inside the alloc set")
    problems.count(path, names, MAX_LOCKS, "locks")
    for number, name in enumerate(names[:MAX_LOCKS]):
        if not LOCK_NAME.fullmatch(name) or len(name) > MAX_LOCK_NAME:
            problems.add(f"{path}[{number}]", f"{name[:80]!r} is not the name of a lock; {LOCK_NAME_RULE}")


def _check_flags(flags: dict[str, Any], problems: Problems, path: str, role: TaskRole) -> None:
    if flags and role.allocation:
        problems.add(path, "an alloc set runs no command; remove the flags, and submit a job into the set")
    problems.count(path, flags, MAX_FLAGS, "flags")
    for name, value in flags.items():
        if not _FLAG.fullmatch(name):
            cure = "use letters, digits, '-', '_' and '.', beginning with a letter; do not write the leading dashes"
            problems.add(f"{path}.{name}", f"{name!r} is not the name of a flag; {cure}")
        if isinstance(value, str | bool | int | float):
            problems.text(f"{path}.{name}", str(value), MAX_ENV_BYTES)
        else:
            problems.add(f"{path}.{name}", f"{value!r} is not the value of a flag; give text, a number, true or false")


def _check_variables(file: TaskFile, problems: Problems, path: str) -> None:
    """Add a problem for each variable `$(name)` in the task that the Borglet does not define. A task with such a
    variable could not start.
    """
    defined = variables.defined(file.ports, packages=bool(file.packages))
    texts = {f"command[{number}]": part for number, part in enumerate(file.command)}
    texts |= {f"env.{name}": value for name, value in file.env.items()}
    texts |= {f"flags.{name}": value for name, value in file.flags.items()}
    for place, text in texts.items():
        if not isinstance(text, str):
            continue
        for name in variables.referenced(text):
            if name not in defined:
                found = f"$({name[:64]}) is not a variable of this task"
                cure = f"write $$({name[:64]}) if the program should get this text, or use one of"
                problems.add(f"{path}.{place}", f"{found}; {cure} {', '.join(defined)}")
                break


def _flag(value: Any) -> str | bool:
    """Return the value of a flag: a boolean, or else text. So 3 and '3' are equal."""
    return value if isinstance(value, bool) else str(value)


def _check_ports(names: list[str], problems: Problems, path: str) -> tuple[str, ...]:
    problems.count(path, names, MAX_PORTS, "ports")
    for number, name in enumerate(names):
        if not _PORT_NAME.fullmatch(name):
            cure = "use lower-case letters, digits and hyphens, a letter first, at most 15 characters"
            problems.add(f"{path}[{number}]", f"{name!r} is not the name of a port; {cure}")
        elif name in names[:number]:
            problems.add(f"{path}[{number}]", f"{name!r} is named twice; name each port once")
    return tuple(names)


def _check_constraints(constraints: list[Constraint], problems: Problems, path: str) -> None:
    problems.count(path, constraints, MAX_CONSTRAINTS, "constraints")
    for number, constraint in enumerate(constraints[:MAX_CONSTRAINTS]):
        here = f"{path}[{number}]"
        if not constraint.attribute:
            problems.add(f"{here}.attribute", "is empty; name an attribute of machines")
        problems.text(f"{here}.attribute", constraint.attribute, 255)
        problems.text(f"{here}.value", constraint.value, 255)
        bare = constraint.relation in (Relation.PRESENT, Relation.ABSENT)
        if bare and constraint.value:
            problems.add(f"{here}.value", f"{constraint.relation} takes no value; remove the value")
        problems.number(f"{here}.weight", constraint.weight, 0, 1000)


def _check_place(file: TaskFile, limit: Vector, problems: Problems, path: str) -> None:
    """Check the options that say how a task uses its machine: root file system, network and whole cores."""
    problems.choice(f"{path}.root", file.root, ("host", "packages"))
    if file.root == "packages" and not file.packages:
        problems.add(f"{path}.root", "'packages' needs a package; name one in task.packages, or use root: host")
    problems.choice(f"{path}.network", file.network, ("host", "own"))
    if file.whole_cores and (limit[CPU] == 0 or limit[CPU] % 1000):
        problems.add(f"{path}.whole_cores", f"limit.cpu is {limit[CPU]}m; ask for whole cores, such as cpu: 2")


def _check_restart(restart: Restart, problems: Problems, path: str) -> None:
    problems.choice(f"{path}.on", restart.on, ("failure", "always", "never"))
    problems.number(f"{path}.max_failures", restart.max_failures, 0, 1_000_000)
    problems.number(f"{path}.window_s", restart.window_s, 1, 7 * 86400)
    problems.number(f"{path}.backoff_s", restart.backoff_s, 0, 3600)
    problems.number(f"{path}.backoff_max_s", restart.backoff_max_s, 0, 86400)
    problems.number(f"{path}.max_moves", restart.max_moves, 0, 1_000_000)


def _check_max_run(max_run_s: float | None, problems: Problems, path: str, role: TaskRole) -> None:
    if max_run_s is None:
        return
    if role.allocation:
        problems.add(path, "an alloc set runs no command; set time limits in the jobs inside the alloc set")
    problems.duration(path, max_run_s, "for tasks without a time limit")


def _read_limit(given: dict[str, Any], ports: int, problems: Problems, path: str, extra: Sequence[str]) -> Vector:
    names = (*NAMES, *extra)
    vector = [DEFAULT_LIMIT.get(name, 0) for name in names]
    vector[PORTS] = ports
    for name, quantity in given.items():
        if name not in names:
            problems.add(f"{path}.{name}", f"this cell has no such resource; use one of {', '.join(names)}")
        elif name == NAMES[PORTS]:
            problems.add(f"{path}.{name}", "ports have names instead of a number; put their names into task.ports")
        else:
            try:
                vector[names.index(name)] = parse_quantity(name, quantity)
            except QuantityError as error:
                problems.add(f"{path}.{name}", str(error))
            # A Borglet would understand 0 as no limit.
            if name in ("ram", "disk") and vector[names.index(name)] == 0:
                problems.add(f"{path}.{name}", "0 is not possible, because every task needs some; give a larger amount")
    return tuple(vector)


def _check_accelerators(milli: int, problems: Problems, path: str) -> None:
    """Check that a task asks for a part of one accelerator, or for a whole number of accelerators. `milli`:
    thousandths of an accelerator.
    """
    if milli > DEVICE and milli % DEVICE:
        whole = milli // DEVICE
        cure = f"ask for {whole} or {whole + 1}, or for a share of one device, such as '500m'"
        problems.add(path, f"{milli}m is more than one device, but not a whole number of devices; {cure}")


def _read_health(file: HealthFile | None, ports: tuple[str, ...], problems: Problems, path: str) -> HealthCheck | None:
    if file is None:
        return None
    if (file.http is None) == (not file.tcp):
        problems.add(path, "needs exactly one kind of check; give either http with a path, such as '/', or tcp: true")
    if file.http is not None and not re.fullmatch(r"/[\x21-\x7e]{0,1023}", file.http):
        problems.add(f"{path}.http", f"{file.http!r} is not the path of a URL; give one such as '/health'")
    port = file.port or (ports[0] if len(ports) == 1 else "")
    if port not in ports:
        declared = f"the declared ports are {', '.join(ports)}" if ports else "no port is declared"
        problems.add(f"{path}.port", f"{port!r} is not in task.ports ({declared}); name one of them")
    problems.number(f"{path}.interval_s", file.interval_s, 0.1, 3600)
    problems.number(f"{path}.timeout_s", file.timeout_s, 0.05, 600)
    problems.number(f"{path}.grace_s", file.grace_s, 0, 86400)
    problems.number(f"{path}.failures", file.failures, 1, 1000)
    return HealthCheck(
        kind="tcp" if file.http is None else "http",
        port=port,
        path=file.http if file.http is not None else "/",
        interval_s=file.interval_s,
        timeout_s=file.timeout_s,
        grace_s=file.grace_s,
        failures=file.failures,
    )


def _health_json(check: HealthCheck) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(check)
    kind, path = fields.pop("kind"), fields.pop("path")
    return fields | ({"tcp": True} if kind == "tcp" else {"http": path})


def _limit_json(limit: Vector, extra: Sequence[str]) -> dict[str, int | str]:
    return {
        name: quantity_json(name, value)
        for index, (name, value) in enumerate(zip((*NAMES, *extra), limit, strict=False))
        if index != PORTS and (value or name in DEFAULT_LIMIT)
    }


def quantity_json(name: str, value: int) -> int | str:
    """Return the shortest exact form of a quantity: `2` for 2000 milli-cores, `"64Mi"` for 2**26 bytes."""
    if name in ("cpu", "accelerators"):
        return value // 1000 if value % 1000 == 0 else f"{value}m"
    if name in ("ram", "disk", "disk_bandwidth"):
        for suffix, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if value and value % size == 0:
                return f"{value // size}{suffix}"
    return value
