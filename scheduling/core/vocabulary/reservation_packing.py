"""The stored form of the reservations of many tasks: a short text instead of nested lists of numbers (§5.5). Pure.

An event about reservations may contain thousands of tasks, with at least eight numbers per task. The text contains
these numbers as columns, because equal and similar numbers then follow each other, and compression makes them short:

    [unit of bytes, tails, differences of successive job ids, indexes, CPU, RAM, disk, number of each task's tail]

A *tail* is the part of a reservation after CPU, RAM and disk. It is the same for most tasks, so each different tail is
stored once, in the list `tails`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import msgspec

_Columns = tuple[int, list[tuple[int, ...]], list[int], list[int], list[int], list[int], list[int], list[int]]
_decoder = msgspec.json.Decoder(_Columns)
_MIB = 2**20
# Below this length, compression and base64 make a text longer.
_SHORT = 100
_COMPRESSED = "z:"
# More than the tasks of the largest cell need.
_MOST_BYTES = 2**27
_ESTIMATED = 3  # CPU, RAM, disk: only these are estimated


def pack(tasks: Sequence[tuple[int, int]], reservations: Sequence[tuple[int, ...]]) -> str:
    """Return the stored form of the reservations of tasks. `tasks`: (job id, index) of each task. `reservations`: the
    amounts that each task reserves, at least CPU, RAM and disk. Raises `ValueError` if the lengths differ or a
    reservation is too short.
    """
    if len(tasks) != len(reservations):
        raise ValueError(f"{len(tasks)} tasks have {len(reservations)} reservations; give one reservation per task")
    if any(len(reservation) < _ESTIMATED for reservation in reservations):
        raise ValueError("a reservation has fewer than three amounts; give at least CPU, RAM and disk")
    whole = all(amount % _MIB == 0 for one in reservations for amount in one[1:_ESTIMATED])
    unit = _MIB if whole else 1
    tails: dict[tuple[int, ...], int] = {}
    places = [tails.setdefault(tuple(one[_ESTIMATED:]), len(tails)) for one in reservations]
    jobs = [job for job, _ in tasks]
    columns: _Columns = (
        unit,
        list(tails),
        [job - before for before, job in zip([0, *jobs], jobs, strict=False)],
        [index for _, index in tasks],
        [one[0] for one in reservations],
        [one[1] // unit for one in reservations],
        [one[2] // unit for one in reservations],
        places,
    )
    plain = msgspec.json.encode(columns)
    if len(plain) < _SHORT:
        return plain.decode()
    return _COMPRESSED + base64.b64encode(zlib.compress(plain, 9)).decode()


def unpack(text: str) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, ...], ...]]:
    """Return (tasks, reservations) of a text that `pack` made. Raises `ValueError` if the text is not such a text."""
    try:
        if text.startswith(_COMPRESSED):
            expanding = zlib.decompressobj()
            content = expanding.decompress(base64.b64decode(text[len(_COMPRESSED) :], validate=True), _MOST_BYTES)
            if not expanding.eof:
                raise ValueError(
                    f"their compressed text is incomplete, or is larger than {_MOST_BYTES:,} bytes after decompression"
                )
        else:
            content = text.encode()
        unit, tails, steps, indexes, cpu, ram, disk, places = _decoder.decode(content)
        tasks, job = [], 0
        for step, index in zip(steps, indexes, strict=True):
            job += step
            tasks.append((job, index))
        amounts = zip(tasks, cpu, ram, disk, places, strict=True)
        return tuple(tasks), tuple((c, r * unit, d * unit, *tails[place]) for _, c, r, d, place in amounts)
    except (zlib.error, msgspec.MsgspecError, IndexError, ValueError) as error:
        raise ValueError(f"the packed reservations are damaged: {error}; restore the journal from a backup") from error
