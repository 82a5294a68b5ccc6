"""Redacts checkpoints, so that a stranger can replay them to reproduce a bug of the scheduler. Pure.

    python -m scheduling.history.checkpoints.redact SOURCE TARGET

Names are replaced by keyed hashes: equal names have equal hashes, and constraints still match. The random key is never
stored, so nobody can test guesses. Commands, environments, labels and maintenance windows are left out. Ids, sizes,
times and states stay.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scheduling.core.cell.machines import IMPLIED
from scheduling.core.vocabulary.events import PoolSet
from scheduling.core.vocabulary.requirement import POOL, PROTOCOL, Requirement
from scheduling.history.checkpoints.file import Header, read, write
from scheduling.history.checkpoints.tables import Tables

if TYPE_CHECKING:
    import pyarrow

# Attributes that Borglets set, and whose values say nothing about the owner of a machine.
_PUBLIC = ("runtime", "cores", PROTOCOL)
_PUBLIC_PREFIX = "isolation."
_NAMES = {"machines": ("hostname", "platform", "rack", "power_domain"), "jobs": ("uid", "tenant", "name")}
# `endings` and `later` belong together (`simulator_checkpoint.py`).
_LEFT_OUT = ("specs", "windows", "endings", "later")
_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - no server listens on it


class _Names:
    """Replaces names by keyed hashes. `key`: the random key of one redacted checkpoint."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, name: str) -> str:
        """Return the hash of a name, which is a DNS label. An empty name stays empty."""
        return "h" + self.hex(name)[:16] if name else ""

    def hex(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=32).hexdigest()

    def digest(self, digest: str) -> str:
        """Return the hash of a package's digest, in the form of a digest."""
        return f"sha256:{self.hex(digest)}"

    def attribute(self, name: str) -> str:
        return name if _is_public(name) or name in (*IMPLIED, POOL) else self.of(name)

    def value(self, attribute: str, value: str) -> str:
        """Return the hash of an attribute's value. Numbers and the values of public attributes are returned unchanged,
        because constraints compare numbers, and public attributes show nothing about the owner.
        """
        return value if _is_public(attribute) or _is_number(value) else self.of(value)


def redact(header: Header, tables: Tables, *, key: bytes | None = None) -> tuple[Header, Tables]:
    """Return a redacted copy of a checkpoint. `key`: only for tests; otherwise a random key is used and forgotten."""
    names = _Names(key or secrets.token_bytes(32))
    changed = {name: table for name, table in tables.items() if name not in _LEFT_OUT}
    for section, columns in _NAMES.items():
        for column in columns:
            changed[section] = _mapped(changed[section], column, names.of)
    changed["jobs"] = _mapped(changed["jobs"], "uid", lambda uid: names.hex(uid)[:32])
    changed["jobs"] = _mapped(changed["jobs"], "labels", lambda _: "{}")
    changed["jobs"] = _mapped(changed["jobs"], "port_names", lambda ports: [names.of(port) for port in ports])
    changed["machines"] = _mapped(changed["machines"], "address", lambda _: _NO_ADDRESS)
    changed["machines"] = _mapped(changed["machines"], "attributes", lambda text: _attributes(text, names))
    if "pools" in changed:  # older checkpoints lack it
        changed["pools"] = _mapped(changed["pools"], "pool", names.of)
        changed["pools"] = _mapped(changed["pools"], "event", lambda text: _pool(text, names))
    changed["packages"] = _mapped(changed["packages"], "digest", names.digest)
    changed["requirements"] = _mapped(changed["requirements"], "requirement", lambda text: _requirement(text, names))
    header = msgspec.structs.replace(
        header,
        cell=names.of(header.cell),
        history=names.hex(header.history)[:32],
        extra_resources=tuple(names.of(resource) for resource in header.extra_resources),
        redacted=True,
    )
    return header, changed


def _attributes(text: str, names: _Names) -> str:
    found = msgspec.json.decode(text, type=dict[str, str])
    changed = {names.attribute(name): names.value(name, value) for name, value in found.items()}
    return msgspec.json.encode(changed).decode()


def _pool(text: str, names: _Names) -> str:
    pool = msgspec.json.decode(text, type=PoolSet)
    tenants = tuple(names.of(one) for one in pool.tenants)
    changed = msgspec.structs.replace(pool, pool=names.of(pool.pool), tenants=tenants, description="", selector="")
    return msgspec.json.encode(changed).decode()


def _requirement(text: str, names: _Names) -> str:
    requirement = msgspec.json.decode(text, type=Requirement)
    constraints = tuple(
        msgspec.structs.replace(
            one, attribute=names.attribute(one.attribute), value=names.value(one.attribute, one.value)
        )
        for one in requirement.constraints
    )
    packages = tuple(sorted((names.digest(digest), size) for digest, size in requirement.packages))
    changed = msgspec.structs.replace(requirement, constraints=constraints, packages=packages)
    return msgspec.json.encode(changed).decode()


def _mapped(table: pyarrow.Table, column: str, change: Callable[[Any], Any]) -> pyarrow.Table:
    import pyarrow

    place, field = table.column_names.index(column), table.schema.field(column)
    known: dict[str, Any] = {}
    values = []
    for value in table[column].to_pylist():
        key = str(value)
        if key not in known:
            known[key] = change(value)
        values.append(known[key])
    return table.set_column(place, field, pyarrow.array(values, field.type))


def _is_public(attribute: str) -> bool:
    return attribute in _PUBLIC or attribute.startswith(_PUBLIC_PREFIX)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def main(source: str, target: str) -> None:
    """Redact the checkpoint in the file `source`, and write the result to the file `target`."""
    with Path(source).open("rb") as file:
        header, tables = redact(*read(file))
    with Path(target).open("wb") as file:
        write(file, header, tables)


if __name__ == "__main__":
    main(*sys.argv[1:])
