import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from portal.up.supervision import children
from portal.up.supervision.account import SystemUser, passable

_SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
_STUBBORN = (
    *(sys.executable, "-S", "-c"),
    "import signal,time,sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(600)",
)


def test_a_record_finds_the_very_process(tmp_path: Path) -> None:
    record = tmp_path / "web.pid"
    child = children.spawn(_SLEEP)
    children.record_write(record, child.pid)
    assert children.record_find(record) == child.pid
    child.kill()
    child.wait()
    assert children.record_find(record) is None


@pytest.mark.parametrize("change", [{"start_time_ticks": 1}, {"boot_id": "another boot"}])
def test_a_record_of_a_reused_pid_finds_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    record = tmp_path / "web.pid"
    children.record_write(record, os.getpid())
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    assert children.record_find(record) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_torn_record_finds_nothing(tmp_path: Path, text: str) -> None:
    record = tmp_path / "web.pid"
    record.write_text(text)
    assert children.record_find(record) is None


def test_a_polite_process_ends_at_the_first_signal() -> None:
    child = children.spawn(_SLEEP)
    assert children.end_process(child.pid, signal.SIGTERM, 10.0)
    assert child.wait() == -signal.SIGTERM


def test_a_stubborn_process_is_killed() -> None:
    child = subprocess.Popen(_STUBBORN, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
    assert not children.end_process(child.pid, signal.SIGTERM, 0.1)
    assert child.wait() == -signal.SIGKILL


def test_a_child_dies_with_the_process_that_started_it() -> None:
    parent = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            f"from portal.up.supervision import children; print(children.spawn({_SLEEP!r}).pid, flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    assert children.wait_until(lambda: children.start_time_ticks(child) is None, 10.0)


def test_another_user_keeps_the_death_signal_and_only_the_capabilities_it_needs() -> None:
    plain = SystemUser(65534, 65534).command(["redis-server"], death_signal=signal.SIGTERM)
    assert plain[-4:] == ["--pdeathsig", "TERM", "--", "redis-server"]
    assert "--ambient-caps" not in plain
    kept = SystemUser(65534, 65534, ("dac_override",)).command(["postgres"])
    assert kept[kept.index("--ambient-caps") + 1] == "+dac_override"


def test_a_closed_folder_above_is_noticed(tmp_path: Path) -> None:
    deep = tmp_path / "closed" / "home"
    deep.mkdir(parents=True)
    for folder in (deep, *deep.parents):
        if folder.stat().st_uid == os.geteuid() and Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o711)
    somebody = 60_001
    open_to_all = passable(deep, somebody, somebody)
    (tmp_path / "closed").chmod(0o700)
    assert open_to_all
    assert not passable(deep, somebody, somebody)
