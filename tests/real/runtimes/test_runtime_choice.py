"""Tests of the choice of a machine's runtime, containers or processes, and of the reason that is reported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from borglet.machine_specs import BadMachine
from borglet.runtimes.oci.oci import Unavailable, find_engine, probe
from borglet.runtimes.runtime_choice import RuntimeWishes, open_runtime, parse_devices, parse_uids
from tests.real.runtimes.machine import may_limit


def attributes_of(home: Path, wishes: RuntimeWishes) -> dict[str, str]:
    async def look() -> dict[str, str]:
        runtime = open_runtime(home, wishes)
        attributes = runtime.attributes()
        await runtime.close()
        return attributes

    return asyncio.run(look())


def test_auto_takes_containers_where_they_can_be_had(tmp_path: Path) -> None:
    attributes = attributes_of(tmp_path / "home", RuntimeWishes())
    if may_limit():
        assert attributes["runtime"] == "oci"
        assert attributes["isolation.pid"] == "namespace"
        assert attributes["isolation.user"] == "task"
        assert attributes["isolation.filesystem"] == "own"
        assert attributes["isolation.syscalls"] == "seccomp"
        assert "runtime.reason" not in attributes
    else:
        assert (attributes["runtime"], attributes["runtime.reason"]) == ("process", "no-root")
    assert not list((tmp_path / "home").glob("probe-*")), "the probe leaves nothing"


def test_processes_by_choice(tmp_path: Path) -> None:
    attributes = attributes_of(tmp_path / "home", RuntimeWishes(runtime="process"))
    assert (attributes["runtime"], attributes["runtime.reason"]) == ("process", "chosen")
    assert attributes["isolation.pid"] == attributes["isolation.network"] == "none"


def test_containers_that_are_demanded_and_not_to_be_had_stop_the_borglet(tmp_path: Path) -> None:
    if may_limit():
        assert attributes_of(tmp_path / "home", RuntimeWishes(runtime="oci"))["runtime"] == "oci"
    else:
        with pytest.raises(BadMachine, match="runtime: containers need a Borglet that runs as root"):
            open_runtime(tmp_path / "home", RuntimeWishes(runtime="oci"))


@pytest.mark.skipif(not may_limit(), reason="only root opens containers")
def test_what_is_missing_is_named_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"need crun and catatonit.*apt-get install crun catatonit") as none:
        find_engine(str(tmp_path))
    assert none.value.code == "no-crun-catatonit"


@pytest.mark.skipif(not may_limit(), reason="only root opens containers")
def test_an_engine_that_fails_is_not_an_engine(tmp_path: Path) -> None:
    broken = tmp_path / "crun"
    broken.write_text("#!/bin/sh\necho the kernel is too old >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(Unavailable, match="cannot open a container here: the kernel is too old") as failed:
        probe(tmp_path, str(broken), find_engine()[1])
    assert failed.value.code == "engine-failed"


def test_ranges_of_users() -> None:
    assert parse_uids("200000-265535") == (200_000, 65_536)
    for text in ("", "5", "0-10", "3000-2000", "200000-9999999999", "a-b"):
        with pytest.raises(BadMachine, match=r"task-uids: .*give FIRST-LAST"):
            parse_uids(text)


def test_devices_by_number() -> None:
    assert parse_devices("0=/dev/nvidia0+/dev/nvidiactl, 1=/dev/dri/card1") == {
        0: ("/dev/nvidia0", "/dev/nvidiactl"),
        1: ("/dev/dri/card1",),
    }
    assert parse_devices("") == {}
    for text in ("x=/dev/a", "0", "0=", "0=/etc/passwd", "0=/dev/a+"):
        with pytest.raises(BadMachine, match=r"devices: .*give NUMBER=/dev"):
            parse_devices(text)


def test_a_network_that_is_none_stops_the_borglet(tmp_path: Path) -> None:
    with pytest.raises(BadMachine, match="task-network: 'x' is not an IPv4 network"):
        open_runtime(tmp_path / "home", RuntimeWishes(network="x"))
