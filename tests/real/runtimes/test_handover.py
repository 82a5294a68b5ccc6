"""Tests of a task whose user changes between runs: its files, and no others, change their owner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from borglet.messages import EndCause
from borglet.runtimes.home.chown_files import hand_over
from borglet.runtimes.oci.oci import OciSettings
from borglet.runtimes.process import ProcessSettings
from tests.real.runtimes.machine import Machine, end_of, may_limit, python, text_of

FORMER, STRANGER, NEW = 65_500, 65_501, 65_502

pytestmark = pytest.mark.skipif(not may_limit(), reason="only root gives files away")


def owner_of(path: Path) -> int:
    return os.stat(path, follow_symlinks=False).st_uid


def test_own_files_are_handed_over_and_nobody_elses(tmp_path: Path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    (work / "deep" / "er").mkdir(parents=True)
    other.mkdir()
    for path in (work / "file", work / "deep" / "er" / "file", work / "foreign", other / "file", other / "linked"):
        path.write_text("x")
    (work / "another").hardlink_to(other / "file")
    (work / "link").symlink_to(other / "linked")
    (work / "folder").symlink_to(other)
    for path in (work, *work.rglob("*"), other, *other.rglob("*")):
        os.chown(path, FORMER, FORMER, follow_symlinks=False)
    os.chown(work / "foreign", STRANGER, STRANGER)

    hand_over(work, (NEW, NEW))

    handed = {work, work / "file", work / "deep", work / "deep" / "er", work / "deep" / "er" / "file"}
    assert {path for path in (work, *work.rglob("*")) if owner_of(path) == NEW} == handed
    assert owner_of(work / "foreign") == STRANGER
    assert {owner_of(path) for path in (other, *other.rglob("*"))} == {FORMER}


async def test_a_task_finds_its_files_writable_after_a_change_of_the_runtime(tmp_path: Path) -> None:
    program = "import os; os.makedirs('kept', exist_ok=True); open('kept/file', 'a').write('x'); print(os.getuid())"
    before = Machine(tmp_path / "home", ProcessSettings())
    async with before.runtime() as runtime:
        await runtime.start(python(program), run=1)
        end = await end_of(runtime)
        assert (end.exit.cause, end.exit.status) == (EndCause.EXITED, 0)
    box = Machine(tmp_path / "home", OciSettings())
    async with box.runtime() as runtime:
        await runtime.start(python(program), run=2)
        end = await end_of(runtime)
        assert (end.exit.cause, end.exit.status) == (EndCause.EXITED, 0), await text_of(runtime, "stderr")
        first, second = (await text_of(runtime)).split()
        assert first != second
        assert (box.work_of() / "kept" / "file").read_text() == "xx"
        await runtime.remove(end.key)
