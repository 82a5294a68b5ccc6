"""The packages that are installed on machines (§3.2). For each package there is a bitmap with one bit per machine."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from scheduling.core.vocabulary.kernel_arrays import Bools, Ints, Ints32

Bitmap = NDArray[np.uint8]
# (digest, size in bytes) of each, as a requirement names them.
Packages = tuple[tuple[str, int], ...]


class InstalledPackages:
    """The installed packages as machines last reported them. `version` increases with every change. Each package has a
    bitmap in which the bit of a machine's slot is 1 if the machine has the package.
    """

    def __init__(self) -> None:
        self.version = 0
        self._slots: dict[str, Bitmap] = {}

    def came(self, digest: str, slots: Ints) -> None:
        bits = self._slots.get(digest, np.zeros(0, dtype=np.uint8))
        width = int(slots.max(initial=-1)) // 8 + 1
        if width > len(bits):
            bits = np.pad(bits, (0, width - len(bits)))
        np.bitwise_or.at(bits, slots >> 3, (1 << (slots & 7)).astype(np.uint8))
        if bits.any():
            self._slots[digest] = bits
        self.version += 1

    def went(self, digest: str, slots: Ints) -> None:
        bits = self._slots.get(digest)
        if bits is None:
            return
        there = slots[slots >> 3 < len(bits)]
        np.bitwise_and.at(bits, there >> 3, ~(1 << (there & 7)).astype(np.uint8))
        if not bits.any():
            del self._slots[digest]  # a digest that nobody has takes no room
        self.version += 1

    def forget(self, slot: int) -> None:
        """Remove all packages of the machine in `slot`. Call this when the machine was removed."""
        for digest in list(self._slots):
            self.went(digest, np.array([slot], dtype=np.int64))

    def bytes_on(self, packages: Packages, slots: Ints32) -> Ints:
        """Return how many bytes of the `packages` each machine in `slots` has installed."""
        found = np.zeros(len(slots), dtype=np.int64)
        for digest, size in packages:
            bits = self._slots.get(digest)
            if bits is not None:
                found[self._has(bits, slots)] += size
        return found

    def by_slot(self) -> dict[int, list[str]]:
        """Return the digests of the installed packages by slot of the machine, sorted. Machines without packages are
        left out.
        """
        found: dict[int, list[str]] = defaultdict(list)
        for digest in sorted(self._slots):
            for slot in np.flatnonzero(np.unpackbits(self._slots[digest], bitorder="little")).tolist():
                found[slot].append(digest)
        return found

    @staticmethod
    def _has(bits: Bitmap, slots: Ints32) -> Bools:
        flags = np.unpackbits(bits, bitorder="little")
        most = int(slots.max(initial=-1)) + 1
        if most > len(flags):
            flags = np.pad(flags, (0, most - len(flags)))
        there: Bools = flags[slots] > 0
        return there
