"""Tests of tasks with their own network address (§8.1): the choice of addresses, and real network namespaces."""

from __future__ import annotations

import asyncio
import random
import time
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from borglet.health_prober import SocketProber
from borglet.machine_specs import BadMachine
from borglet.messages import EndCause, HealthCheck
from borglet.runtimes.base.networks import TaskNetworks, choose_address, parse_network
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.measuring.meter import MIN_INTERVAL_S
from borglet.runtimes.oci.oci import OciSettings
from borglet.runtimes.process import ProcessRuntime
from tests.real.runtimes.machine import BOUND_S, Machine, a_task, end_of, eventually, key, line_of, may_limit, text_of

SERVER = ["python3", "-m", "http.server", "80"]
SENT = 4 * 2**20
CHECK = HealthCheck("tcp", "http")


def test_addresses_are_given_once_each_and_kept() -> None:
    network = IPv4Network("10.1.2.0/28")
    taken: dict[str, str] = {}
    for index in range(13):
        name = f"job.{index}.1"
        taken[name] = str(choose_address(network, name, mine="", taken=taken.values()))
    assert len(set(taken.values())) == 13
    assert not {"10.1.2.0", "10.1.2.1", "10.1.2.15"} & set(taken.values())
    assert str(choose_address(network, "job.4.1", mine=taken["job.4.1"], taken=taken.values())) == taken["job.4.1"]
    with pytest.raises(StartFailed, match=r"all 13 addresses .* BORGLET_TASK_NETWORK"):
        choose_address(network, "job.13.1", mine="", taken=taken.values())


def test_an_address_of_a_former_network_is_given_up() -> None:
    found = choose_address(IPv4Network("10.9.0.0/24"), "job.0.1", mine="10.1.2.4", taken=())
    assert found in IPv4Network("10.9.0.0/24")


@pytest.mark.parametrize("text", ["10.1.2.3/24", "10.0.0.0/31", "10.0.0.0/32", "fd00::/64", "yes"])
def test_a_setting_that_is_not_a_network_for_tasks_is_named(text: str) -> None:
    with pytest.raises(BadMachine, match=rf"task-network: '{text}'.*give"):
        parse_network(text)
    assert parse_network("") is None


def a_network() -> IPv4Network:
    """Return a random network of 16 addresses from the range for benchmarks (RFC 2544).

    Several test runs can share a machine, so they must not use the same network.
    """
    return IPv4Network((0xC6120000 + (random.Random().randrange(2**13) << 4), 28))


@pytest.fixture
def box(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "home", OciSettings(network=a_network()))


def left_of(networks: TaskNetworks, name: str) -> list[Path]:
    paths = [
        networks.namespace(name),
        Path("/sys/class/net", networks.interface(name)),
        Path("/sys/class/net", networks.bridge),
    ]
    return [path for path in paths if path.exists()]


@pytest.mark.skipif(not may_limit(), reason="only root makes networks")
async def test_two_tasks_have_the_same_port_of_addresses_of_their_own(box: Machine) -> None:
    keys = [key(0), key(1)]
    prober = SocketProber("127.0.0.1")
    began = time.monotonic()
    async with box.runtime() as runtime:
        assert runtime.attributes()["isolation.network"] == "own"
        for task in keys:
            await runtime.start(a_task(*SERVER, key=task, network="own", name=f"aa/ada/web/{task.index}"), run=1)
        addresses = runtime.addresses()
        assert len(set(addresses.values())) == 2
        for task in keys:
            deadline = asyncio.get_running_loop().time() + BOUND_S / 2
            while not (await prober.probe(CHECK, 80, addresses[task])).ok:
                assert asyncio.get_running_loop().time() < deadline, "it never listened"
                await asyncio.sleep(0.02)
        # One task reaches the other by its address, and resolves its own name.
        third = key(2)
        (box.work_of(keys[0]) / "large").write_bytes(b"x" * SENT)
        program = (
            "import socket, urllib.request;"
            f" urllib.request.urlopen('http://{addresses[keys[0]]}/large', timeout=60).read();"
            " print(socket.gethostname(), socket.gethostbyname(socket.gethostname()), flush=True)"
        )
        await runtime.start(a_task("python3", "-c", program, key=third, network="own", name="aa/ada/web/2"), run=1)
        told = await line_of(runtime, third)
        assert told == f"web-2 {runtime.addresses()[third]}", await text_of(runtime, "stderr", third)
        # Traffic counts only for the task whose network it went over, and not for its neighbour.
        await asyncio.sleep(MIN_INTERVAL_S)  # the tasks may be younger than the interval of measurements
        used = await runtime.sample()
        at_most_s = time.monotonic() - began
        assert used[keys[0]].sent_bytes_s * at_most_s >= SENT
        assert 0 < used[keys[0]].received_bytes_s < used[keys[0]].sent_bytes_s
        assert used[keys[1]].sent_bytes_s * at_most_s < SENT / 10
        await end_of(runtime)
    # A new Borglet finds the addresses, and a second run of a task keeps its address.
    async with box.runtime() as runtime:
        await runtime.presences()
        assert {task: runtime.addresses()[task] for task in keys} == {task: addresses[task] for task in keys}
        for task in keys:
            await runtime.stop(task, notice_s=0, cause=EndCause.STOPPED)
            await end_of(runtime)
        await runtime.start(a_task("true", key=keys[0], network="own"), run=2)
        assert runtime.addresses()[keys[0]] == addresses[keys[0]]
        await end_of(runtime)
        assert isinstance(box.settings, OciSettings)
        assert box.settings.network is not None
        networks = TaskNetworks(box.settings.network, box.home)
        for task in (*keys, third):
            await runtime.remove(task)
    for task in (*keys, third):
        await eventually(lambda: not left_of(networks, f"{task.job}.{task.index}.1"), "all of it gone")  # noqa: B023


@pytest.mark.skipif(not may_limit(), reason="only root makes networks")
async def test_the_process_that_meets_its_end_removes_the_network(box: Machine) -> None:
    """End a task with its own network through a runtime without network settings, as `stop-all` does.

    The network must be removed.
    """
    assert isinstance(box.settings, OciSettings)
    assert box.settings.network is not None
    networks = TaskNetworks(box.settings.network, box.home)
    async with box.runtime() as runtime:
        await runtime.start(a_task("sleep", "100", network="own"), run=1)
        assert len(left_of(networks, f"{key().job}.0.1")) == 3
    plain = ProcessRuntime(box.home)
    await plain.presences()
    await plain.stop(key(), notice_s=0, cause=EndCause.STOPPED)
    await end_of(plain)
    await plain.close()
    await eventually(lambda: not left_of(networks, f"{key().job}.0.1"), "all of it gone")


@pytest.mark.skipif(not may_limit(), reason="only root makes networks")
async def test_a_task_with_its_own_network_sees_no_other(box: Machine) -> None:
    program = "ls /sys/class/net | sort | tr '\\n' ' '; cat /proc/net/unix | grep -c @"
    async with box.runtime() as runtime:
        await runtime.start(a_task("sh", "-c", program, network="own"), run=1)
        await end_of(runtime)
        assert (await text_of(runtime)).split() == ["eth0", "lo", "0"]
        await runtime.remove(key())


@pytest.mark.skipif(not may_limit(), reason="only root makes networks")
async def test_a_machine_without_addresses_says_so(tmp_path: Path) -> None:
    box = Machine(tmp_path / "home", OciSettings())
    async with box.runtime() as runtime:
        assert runtime.attributes()["isolation.network"] == "none"
        with pytest.raises(StartFailed, match=r"network: this machine has no addresses .* BORGLET_TASK_NETWORK"):
            await runtime.start(a_task("true", network="own"), run=1)
