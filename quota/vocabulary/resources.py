"""The resource axis: the names, order and units of all resources (§5.4).

A *vector* is a tuple of non-negative integers, one per resource, in this order. A cell may append resources of its own,
whose quantities have no unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

Vector = tuple[int, ...]


class Resource(NamedTuple):
    """A resource that every cell has, such as CPU. `AXIS` lists these resources.

    `name`: its name in job files. `unit`: the unit of its quantities. `compressible`: whether a machine can slow down
    the use of the resource without killing the task (§6.2).
    """

    name: str
    unit: str
    compressible: bool


AXIS: tuple[Resource, ...] = (
    Resource("cpu", "milli-cores", compressible=True),
    Resource("ram", "bytes", compressible=False),
    Resource("disk", "bytes", compressible=False),
    Resource("disk_bandwidth", "bytes/s", compressible=True),
    Resource("accelerators", "milli-units", compressible=False),
    Resource("ports", "count", compressible=False),
)
NAMES: tuple[str, ...] = tuple(resource.name for resource in AXIS)
CPU, RAM, DISK, DISK_BANDWIDTH, ACCELERATORS, PORTS = range(len(AXIS))
SIZE = len(AXIS)
ZERO: Vector = (0,) * SIZE
# One accelerator device. A smaller request is a share of one device; a larger request is a whole number of devices.
DEVICE = 1000

# The maximum quantity of a resource for one task. It keeps sums over a cell within 64 bits.
MAX_QUANTITY = 2**53

_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)$")
_BYTE_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_MILLI_SUFFIXES = {"": 1000, "m": 1}


class QuantityError(ValueError):
    """The error for a quantity that is not valid. The message says what was given and what is accepted."""


def parse_quantity(name: str, given: int | float | str) -> int:
    """Return the quantity `given` of the resource `name` in the unit of this resource, rounded up. Raises
    `QuantityError` if `given` is not a quantity or is too large.

    For CPU and accelerators, `given` is a number such as `0.5`, or a number of thousandths such as `"500m"`. For RAM,
    disk and disk bandwidth, `given` is a number of bytes, or a text with a suffix, such as `"64Mi"` or `"1.5G"`. For
    other resources, `given` is a whole number.
    """
    text = str(given).strip()
    match = _QUANTITY.match(text)
    if isinstance(given, bool) or match is None:
        raise QuantityError(f"{given!r} is not a quantity of {name}; give a number such as {_example(name)}")
    suffixes = _suffixes(name)
    number, suffix = match.groups()
    if suffix not in suffixes:
        accepted = ", ".join(repr(s) for s in suffixes if s) or "no suffix"
        raise QuantityError(f"{given!r} of {name} has the unknown suffix {suffix!r}; use {accepted}")
    try:
        scaled = Decimal(number) * suffixes[suffix]
    except InvalidOperation as error:
        raise QuantityError(f"{given!r} is not a quantity of {name}; give a number such as {_example(name)}") from error
    value = int(scaled.to_integral_value(rounding="ROUND_CEILING"))
    if value > MAX_QUANTITY:
        raise QuantityError(f"{given!r} of {name} is too large; give at most {MAX_QUANTITY}")
    return value


def parse_vector(given: Mapping[str, int | float | str], *, extra: Sequence[str] = ()) -> Vector:
    """Return a mapping `{resource name: quantity}` as a vector over `AXIS + extra`. Raises `QuantityError` if a name is
    unknown or a quantity is not valid.
    """
    names = (*NAMES, *extra)
    for name in given:
        if name not in names:
            raise QuantityError(f"resource {name!r} is unknown; give some of {', '.join(names)}")
    return tuple(parse_quantity(name, given[name]) if name in given else 0 for name in names)


def format_number(value: float, digits: int = 4, *, separators: bool = True) -> str:
    """Return a number as text for people, such as `1,709,580`, `57` or `0.25`, with at least `digits` significant
    digits.

    Whole numbers keep all digits, and values below a millionth become 0. `separators`: whether the text has commas
    between thousands.
    """
    if not separators:
        return format_number(value, digits).replace(",", "")
    if value == int(value) or abs(value) >= 10 ** (digits - 1):
        return f"{round(value):,}"
    places = min(6, digits - 1 - math.floor(math.log10(abs(value))))
    shown = f"{value:,.{places}f}".rstrip("0").rstrip(".")
    return "0" if shown in ("-0", "") else shown


def describe(index: int, value: int, *, extra: Sequence[str] = ()) -> str:
    """Return a quantity as text for people: `describe(RAM, 2**26)` is `"64 MiB"`."""
    name = (*NAMES, *extra)[index]
    if name in ("cpu", "accelerators"):
        unit = "core" if name == "cpu" else "accelerator"
        return f"{format_number(value / 1000)} {unit}{'' if value == 1000 else 's'}"
    if name in ("ram", "disk", "disk_bandwidth"):
        tail = "/s" if name == "disk_bandwidth" else ""
        for suffix, size in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if abs(value) >= size:
                return f"{format_number(value / size)} {suffix}{tail}"
        return f"{value} B{tail}"
    return f"{format_number(value)} {name}"


def format_quantities(quantities: Mapping[int, int]) -> str:
    """Return quantities as text, such as `1 core, 4 GiB of RAM`. The keys are the positions of the resources in
    vectors.
    """
    return ", ".join(f"{describe(index, value)}{_of(index)}" for index, value in quantities.items() if value)


def format_vector(vector: Sequence[int]) -> str:
    """Return the quantities of a vector that are not zero as text, such as `1 core, 4 GiB of RAM`."""
    return format_quantities(dict(enumerate(vector)))


def format_input(name: str, value: int) -> str:
    """Format a quantity in the notation of job files and forms: `format_input("ram", 2**34)` is `16Gi`."""
    if name in ("cpu", "accelerators"):
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    if name in ("ram", "disk", "disk_bandwidth"):
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            if value and value % _BYTE_SUFFIXES[suffix] == 0:
                return f"{value // _BYTE_SUFFIXES[suffix]}{suffix}"
    return str(value)


_WORDS = {"ram": "RAM", "disk_bandwidth": "disk bandwidth"}


def _of(index: int) -> str:
    name = NAMES[index]
    return f" of {_WORDS.get(name, name)}" if name in ("ram", "disk", "disk_bandwidth") else ""


def as_mapping(vector: Sequence[int], *, extra: Sequence[str] = ()) -> dict[str, int]:
    """Return a vector as `{resource name: quantity}`, for JSON."""
    return {name: int(value) for name, value in zip((*NAMES, *extra), vector, strict=False)}


def add(left: Sequence[int], right: Sequence[int]) -> Vector:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def scale(vector: Sequence[int], count: int) -> Vector:
    return tuple(count * value for value in vector)


def total(vectors: Iterable[Sequence[int]]) -> Vector:
    """Return the sum of vectors with the same length, or `ZERO` if there are none."""
    result: Vector | None = None
    for vector in vectors:
        result = tuple(vector) if result is None else add(result, vector)
    return ZERO if result is None else result


def _suffixes(name: str) -> dict[str, int]:
    if name in ("cpu", "accelerators"):
        return _MILLI_SUFFIXES
    if name in ("ram", "disk", "disk_bandwidth"):
        return _BYTE_SUFFIXES
    return {"": 1}


def _example(name: str) -> str:
    return {"cpu": "0.5 or '500m'", "accelerators": "1 or '250m'"}.get(
        name, "'64Mi'" if _suffixes(name) is _BYTE_SUFFIXES else "2"
    )
