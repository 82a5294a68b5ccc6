"""Tests of the file by which the supervisor sees that the event loop of a link shard is running."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from scheduling.link.transport import pulse


def test_the_loop_touches_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "link.pulse"
    monkeypatch.setenv("BORG_PULSE", str(file))

    async def scenario() -> None:
        beating = asyncio.create_task(pulse.pulse_forever())
        try:
            async with asyncio.timeout(10.0):
                while not file.exists():
                    await asyncio.sleep(0.01)
                first = file.stat().st_mtime_ns
                while file.stat().st_mtime_ns == first:
                    await asyncio.sleep(0.05)
        finally:
            beating.cancel()

    asyncio.run(scenario())
