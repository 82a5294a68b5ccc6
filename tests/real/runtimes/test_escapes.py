"""Tests of attempts to break out of a real container: each is rejected, with the expected error (§6.1)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from borglet.messages import EndCause
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.home.supervised_runtime import SupervisedRuntime
from borglet.runtimes.oci.oci import OciSettings
from tests.real.runtimes.machine import (
    Machine,
    a_task,
    end_of,
    eventually,
    is_alive,
    key,
    line_of,
    may_limit,
    process_of,
    processes_of,
    python,
    supervisor_pid,
    text_of,
)

pytestmark = pytest.mark.skipif(not may_limit(), reason="only root opens containers")

# Each program begins with this. `tried` collects the result of each attempt: "done" or the name of the error.
PRELUDE = """
import ctypes, errno, json, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
tried = {}
def attempt(name, action):
    try:
        tried[name] = action()
        if tried[name] is None:
            tried[name] = 'done'
    except OSError as error:
        tried[name] = errno.errorcode[error.errno]
def call(function, *arguments):
    if function(*arguments) == -1:
        raise OSError(ctypes.get_errno(), 'refused')
def read(path):
    with open(path, 'rb') as file:
        return repr(file.read(64))
def write(path, text):
    file = os.open(path, os.O_WRONLY)
    os.write(file, text.encode())
    os.close(file)
"""
TELL = "\nprint(json.dumps(tried), flush=True)"
NEIGHBOUR = key(7)
USUAL = ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2", "136:*")


@pytest.fixture
def box(tmp_path: Path) -> Machine:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # so that a closed folder is not the reason why an attempt fails
    return Machine(tmp_path / "home", OciSettings(disk_interval_s=0.0))


@asynccontextmanager
async def beside_a_neighbour(box: Machine) -> AsyncIterator[SupervisedRuntime]:
    """Yield a runtime on which another task runs that holds a secret in its files and environment."""
    async with box.runtime() as runtime:
        secret = "umask 000; echo hidden > secret; echo hidden > /tmp/secret; echo ready; exec sleep 100"
        await runtime.start(a_task("sh", "-c", secret, key=NEIGHBOUR, env={"SECRET": "hidden"}), run=1)
        await line_of(runtime, NEIGHBOUR)
        yield runtime
        running = [presence for presence in await runtime.presences() if presence.exit is None]
        for presence in running:
            await runtime.stop(presence.key, notice_s=0, cause=EndCause.STOPPED)
        for _ in running:
            await end_of(runtime)


async def report_of(runtime: SupervisedRuntime, program: str, **changes: Any) -> dict[str, Any]:
    """Run a Python program in a container and return its results by attempt. Fail if its exit status is not 0."""
    await runtime.start(python(PRELUDE + program + TELL, **changes), run=1)
    end = await end_of(runtime)
    assert end.exit is not None
    assert end.exit.status == 0, await text_of(runtime, "stderr")
    told: dict[str, Any] = json.loads(await text_of(runtime))
    return told


async def test_a_task_has_no_privilege_and_gets_none(box: Machine) -> None:
    program = """
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
tried.update({name: value for name, value in status.items() if name.startswith(('Cap', 'NoNew', 'Seccomp'))})
attempt('setuid', lambda: os.setuid(0))
attempt('setgid', lambda: os.setgid(0))
attempt('chown', lambda: os.chown('/work', 0, 0))
attempt('hostname', lambda: socket.sethostname('mine'))
attempt('clock', lambda: call(libc.settimeofday, b'\\0' * 16, None))
attempt('nice', lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
attempt('chroot', lambda: os.chroot('/work'))
attempt('reboot', lambda: call(libc.reboot, 0))
tried['uid'] = os.getuid()
"""
    async with box.runtime() as runtime:
        told = await report_of(runtime, program)
    assert {told[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {"0" * 16}
    assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
    assert 200_000 <= told["uid"] < 265_536
    for name in ("setuid", "setgid", "chown", "hostname", "clock", "chroot", "reboot"):
        assert told[name] == "EPERM", name
    assert told["nice"] == "EACCES"


async def test_it_sees_nothing_of_another_task_or_of_the_borglet(box: Machine) -> None:
    async with beside_a_neighbour(box) as runtime:
        work = box.work_of(NEIGHBOUR)
        assert (work / "secret").read_text() == "hidden\n"
        program = f"""
attempt('by its path', lambda: read({str(work / "secret")!r}))
attempt('the home', lambda: os.listdir({str(box.home)!r}))
attempt('the root of init', lambda: os.listdir('/proc/1/root/'))
attempt('the environment of init', lambda: read('/proc/1/environ'))
attempt('the home of root', lambda: os.listdir('/root'))
attempt('passwords', lambda: read('/etc/shadow'))
tried['root'] = sorted(os.listdir('/'))
tried['tmp'] = os.listdir('/tmp')
tried['work'] = os.listdir('/work')
tried['mounts'] = open('/proc/self/mountinfo').read()
"""
        told = await report_of(runtime, program)
        assert box.work_of().stat().st_uid != work.stat().st_uid
    assert told["by its path"] == told["the home"] == told["the home of root"] == told["passwords"] == "ENOENT"
    assert told["the root of init"] == told["the environment of init"] == "EACCES"
    assert told["tmp"] == told["work"] == []
    assert set(told["root"]) <= {
        *("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "var", "run"),
        *("alloc", "dev", "packages", "proc", "sys", "tmp", "work"),
    }
    assert NEIGHBOUR.job not in told["mounts"].replace(f"{key().job}.0.1", "")


async def test_it_sees_and_signals_its_own_processes_alone(box: Machine) -> None:
    async with beside_a_neighbour(box) as runtime:
        neighbour = await process_of(box, NEIGHBOUR)
        others = [neighbour, supervisor_pid(box, NEIGHBOUR), os.getpid()]
        program = f"""
tried['seen'] = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())
for pid in {others!r}:
    attempt(f'kill {{pid}}', lambda: os.kill(pid, signal.SIGKILL))
attempt('kill init', lambda: os.kill(1, signal.SIGKILL))
child = os.fork()
if child == 0:
    signal.pause()
attempt('kill its group', lambda: os.killpg(0, 0))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
attempt('kill all', lambda: os.kill(-1, signal.SIGTERM))
tried['child'] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
        told = await report_of(runtime, program)
        assert all(is_alive(pid) for pid in others)
    assert len(told["seen"]) == 2
    assert told["seen"][0] == 1
    assert {told[f"kill {pid}"] for pid in others} == {"ESRCH"}
    assert told["kill init"] == "EPERM"
    assert told["child"] == -signal.SIGTERM


async def test_what_the_kernel_shows_of_the_machine_is_closed(box: Machine) -> None:
    program = """
attempt('sysrq', lambda: write('/proc/sysrq-trigger', 'h'))
attempt('hostname', lambda: write('/proc/sys/kernel/hostname', 'mine'))
attempt('core pattern', lambda: write('/proc/sys/kernel/core_pattern', '|/work/x'))
attempt('messages', lambda: call(libc.klogctl, 3, b' ' * 64, 64))
tried['readable'] = [path for path in ('/proc/kcore', '/proc/kmsg', '/proc/keys', '/proc/timer_list')
                     if os.access(path, os.R_OK) and read(path) != "b''"]
tried['writable'] = [os.path.join(folder, name) for top in ('/sys', '/proc/sys') for folder, _, names in os.walk(top)
                     for name in names if os.access(os.path.join(folder, name), os.W_OK)]
tried['groups'] = os.listdir('/sys/fs/cgroup') if os.path.isdir('/sys/fs/cgroup') else []
attempt('a group', lambda: os.mkdir('/sys/fs/cgroup/mine'))
"""
    async with box.runtime() as runtime:
        told = await report_of(runtime, program)
    assert told["sysrq"] in {"EROFS", "EACCES", "ENOENT"}  # not every kernel has it
    assert told["hostname"] in {"EROFS", "EACCES"}
    assert told["core pattern"] in {"EROFS", "EACCES"}
    assert told["messages"] == "EPERM"
    assert told["readable"] == told["writable"] == told["groups"] == []
    assert told["a group"] in {"EROFS", "EACCES"}


async def test_it_mounts_nothing_and_enters_no_other_namespace(box: Machine) -> None:
    program = """
attempt('mount', lambda: call(libc.mount, b'none', b'/work', b'tmpfs', 0, None))
attempt('remount', lambda: call(libc.mount, None, b'/usr', None, 0x20 | 0x1000, None))
attempt('umount', lambda: call(libc.umount2, b'/usr', 2))
attempt('open_tree', lambda: call(libc.syscall, 428, -100, b'/usr', 1))
attempt('fsopen', lambda: call(libc.syscall, 430, b'tmpfs', 0))
for name, flag in (('user', 0x10000000), ('mount', 0x20000), ('network', 0x40000000), ('pid', 0x20000000)):
    attempt('unshare ' + name, lambda: call(libc.unshare, flag))
    attempt('clone ' + name, lambda: call(libc.syscall, 56, flag | 17, 0, 0, 0, 0))
attempt('clone3', lambda: call(libc.syscall, 435, b'\\0' * 64, 64))
attempt('setns', lambda: call(libc.setns, os.open('/proc/self/ns/mnt', os.O_RDONLY), 0))
"""
    async with box.runtime() as runtime:
        told = await report_of(runtime, program)
    clones = {name: told.pop(name) for name in list(told) if name.startswith("clone")}
    assert set(told.values()) == {"EPERM"}, told
    assert set(clones.values()) <= {"EPERM", "ENOSYS"}, clones


async def test_it_opens_no_raw_socket(box: Machine) -> None:
    program = """
attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close())
attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300).close())
attempt('vsock', lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close())
attempt('crypto', lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close())
attempt('low port', lambda: socket.create_server(('127.0.0.1', 1)).close() if
        int(open('/proc/sys/net/ipv4/ip_unprivileged_port_start').read()) > 1 else 'unasked')
attempt('stream', lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close())
attempt('names', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close())
"""
    async with box.runtime() as runtime:
        told = await report_of(runtime, program)
    assert told["raw"] == "EPERM"
    assert {told[name] for name in ("packet", "vsock", "crypto")} <= {"ENOSYS", "EPERM"}
    assert told["low port"] in {"EACCES", "unasked"}
    assert told["stream"] == told["names"] == "done"


async def test_it_traces_nobody_and_loads_nothing_into_the_kernel(box: Machine) -> None:
    program = """
child = os.fork()
if child == 0:
    signal.pause()
attempt('attach', lambda: call(libc.ptrace, 16, child, 0, 0))
attempt('attach to init', lambda: call(libc.ptrace, 16, 1, 0, 0))
attempt('read', lambda: call(libc.process_vm_readv, child, None, 0, None, 0, 0))
attempt('memory of init', lambda: read('/proc/1/mem'))
for name, number in (('bpf', 321), ('perf', 298), ('io_uring', 425), ('userfault', 323), ('module', 313),
                     ('keys', 250), ('handle', 304), ('kexec', 246)):
    attempt(name, lambda: call(libc.syscall, number, 0, 0, 0, 0, 0))
os.kill(child, signal.SIGKILL)
"""
    async with box.runtime() as runtime:
        told = await report_of(runtime, program)
    assert told.pop("memory of init") == "EACCES"
    assert set(told.values()) == {"EPERM"}, told


async def test_it_reaches_no_device(box: Machine) -> None:
    """Try to create device nodes, to use planted ones, and to list /dev. Only the usual devices may work."""
    tree = box.home.parent / "tree"
    tree.mkdir()
    os.mknod(tree / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    (tree / "zero").chmod(0o666)
    program = """
attempt('block', lambda: os.mknod('/work/disk', 0o660 | 0o060000, os.makedev(254, 0)))
attempt('character', lambda: os.mknod('/tmp/zero', 0o660 | 0o020000, os.makedev(1, 5)))
attempt('planted', lambda: read('/work/planted'))
attempt('packaged', lambda: read('/packages/app/zero'))
attempt('null', lambda: write('/dev/null', 'x'))
tried['dev'] = sorted(os.listdir('/dev'))
"""
    async with box.runtime() as runtime:
        await runtime.start(a_task("true"), run=1)
        await end_of(runtime)
        os.mknod(box.work_of() / "planted", 0o666 | 0o020000, os.makedev(1, 5))
        (box.work_of() / "planted").chmod(0o666)
        await runtime.start(python(PRELUDE + program + TELL), run=2, trees={"app": tree})
        await end_of(runtime)
        told = json.loads(await text_of(runtime))
    assert told["block"] == told["character"] == "EPERM"
    assert told["planted"] == told["packaged"] == "EACCES"
    assert told["null"] == "done"
    assert set(told["dev"]) <= {
        *("core", "fd", "full", "init", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin"),
        *("stdout", "tty", "urandom", "zero"),
    }
    about = os.stat("/dev/null")
    assert (about.st_uid, about.st_gid) == (0, 0), "the engine must never get the machine's own as a stream"


async def test_set_user_bits_give_nothing(box: Machine) -> None:
    tree = box.home.parent / "tree"
    tree.mkdir()
    command = shutil.which("id")
    assert command is not None
    shutil.copy(command, tree / "id")
    (tree / "id").chmod(0o4755)
    assert (tree / "id").stat().st_uid == 0
    program = "/packages/app/id -u; ./planted -u; echo | su -c id 2>/dev/null || echo refused"
    async with box.runtime() as runtime:
        await runtime.start(a_task("true"), run=1)
        await end_of(runtime)
        shutil.copy(tree / "id", box.work_of() / "planted")
        (box.work_of() / "planted").chmod(0o4755)
        await runtime.start(a_task("sh", "-c", program), run=2, trees={"app": tree})
        await end_of(runtime)
        uid = str(box.work_of().stat().st_uid)
        assert (await text_of(runtime)).splitlines() == [uid, uid, "refused"]


async def test_what_is_shared_is_read_only(box: Machine) -> None:
    tree = box.home.parent / "tree"
    tree.mkdir(mode=0o777)
    tree.chmod(0o777)
    (tree / "file").write_text("as it was")
    (tree / "file").chmod(0o666)
    program = """
attempt('package', lambda: write('/packages/app/file', 'changed'))
attempt('new in package', lambda: os.mkdir('/packages/app/new'))
for folder in ('/', '/usr', '/etc', '/var', '/run', '/usr/bin', '/dev'):
    attempt(folder, lambda: os.mkdir(folder + '/new'))
attempt('identity', lambda: os.mkdir('/run/borg/new'))
attempt('its own', lambda: os.mkdir('/work/new'))
"""
    async with box.runtime() as runtime:
        await runtime.start(python(PRELUDE + program + TELL), run=1, trees={"app": tree})
        await end_of(runtime)
        told = json.loads(await text_of(runtime))
    assert told.pop("its own") == "done"
    assert set(told.values()) <= {"EROFS", "EACCES"}, told
    assert (tree / "file").read_text() == "as it was"


async def test_links_that_a_task_leaves_are_not_followed_by_its_borglet(box: Machine) -> None:
    """Leave symbolic links in a task's folders. The Borglet must not follow the links.

    This holds when it measures the disk, prepares the next run, reads logs, or deletes the folder.
    """
    victim = box.home.parent / "victim"
    victim.mkdir()
    (victim / "file").write_bytes(b"x" * 2**20)
    before = victim.stat().st_uid, (victim / "file").stat().st_uid
    program = f"""
for folder in ('/work', '/tmp'):
    os.symlink({str(victim)!r}, folder + '/link')
    os.symlink({str(victim / "file")!r}, folder + '/stdout.0000000000000000')
    attempt(folder, lambda: os.rename(folder, '/tmp/away'))
"""
    async with box.runtime() as runtime:
        told = await report_of(runtime, program)
        assert set(told.values()) <= {"EROFS", "EBUSY", "EACCES", "EXDEV"}, told
        await runtime.start(a_task("sleep", "100"), run=2)
        usage = (await runtime.sample())[key()]
        assert usage.disk_bytes < 2**19
        await runtime.stop(key(), notice_s=0, cause=EndCause.STOPPED)
        await end_of(runtime)
        await runtime.remove(key())
        assert (await runtime.presences()) == []
    assert (victim.stat().st_uid, (victim / "file").stat().st_uid) == before
    assert (victim / "file").stat().st_size == 2**20


async def test_two_live_tasks_never_share_a_number_also_over_a_restart_of_the_borglet(box: Machine) -> None:
    box.with_settings(uids=4)
    keys = [key(index) for index in range(4)]
    async with box.runtime() as runtime:
        for task in keys[:3]:
            await runtime.start(a_task("sleep", "100", key=task), run=1)
        first = [box.work_of(task).stat().st_uid for task in keys[:3]]
    async with box.runtime() as runtime:
        await runtime.start(a_task("sleep", "100", key=keys[3]), run=1)
        uids = [box.work_of(task).stat().st_uid for task in keys]
        assert uids[:3] == first
        assert sorted(uids) == [200_000, 200_001, 200_002, 200_003]
        pids = [await process_of(box, task) for task in keys]
        assert [os.stat(f"/proc/{pid}").st_uid for pid in pids] == uids
        for task in keys:
            await runtime.stop(task, notice_s=0, cause=EndCause.STOPPED)
        for _ in keys:
            await end_of(runtime)
        await eventually(lambda: not any(is_alive(pid) for pid in pids), "their ends")


async def test_zombies_are_reaped_and_a_program_without_handler_obeys_sigterm(box: Machine) -> None:
    program = """
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
print('forked', flush=True)
signal.sigwait({signal.SIGUSR1})
"""
    async with box.runtime() as runtime:
        await runtime.start(python(PRELUDE + program), run=1)
        await line_of(runtime)
        await eventually(lambda: len(processes_of(box)) == 1, "the orphans to be collected")
        await runtime.stop(key(), notice_s=20, cause=EndCause.STOPPED)
        end = await end_of(runtime)
        assert end.exit is not None
        assert (end.exit.signal, end.exit.detail) == (signal.SIGTERM, "")


async def test_a_package_can_be_the_whole_root(box: Machine) -> None:
    tree = box.home.parent / "tree"
    init = shutil.which("catatonit")
    assert init is not None
    for folder in (tree, tree / "bin", tree / "srv", tree / "work"):
        folder.mkdir(mode=0o755)
    shutil.copy(init, tree / "bin" / "app")
    (tree / "app").symlink_to("bin/app")
    async with box.runtime() as runtime:
        task = a_task("/app", "-V", root="packages")
        with pytest.raises(StartFailed, match="root: packages needs at least one package"):
            await runtime.start(task, run=1)
        await runtime.start(task, run=1, trees={"base": tree})
        end = await end_of(runtime)
        assert end.exit is not None
        assert end.exit.status == 0
        assert "catatonit" in await text_of(runtime)
        with pytest.raises(StartFailed, match="command 'ls' not found in PATH"):  # no program of the machine is visible
            await runtime.start(a_task("ls", root="packages"), run=2, trees={"base": tree})
        assert sorted(entry.name for entry in tree.iterdir()) == ["app", "bin", "srv", "work"]


async def test_an_allotted_accelerator_is_the_tasks_own_and_no_other(box: Machine) -> None:
    usual = {"full", "null", "ptmx", "random", "tty", "urandom", "zero", "console"}
    found = sorted(
        entry.path
        for entry in os.scandir("/dev")
        if entry.name not in usual and stat.S_ISCHR(entry.stat(follow_symlinks=False).st_mode)
    )
    box.with_settings(devices={0: (found[0],), 1: (found[1],)})
    program = f"""
about = os.stat({found[1]!r})
tried['own'] = about.st_rdev == os.makedev({os.major(os.stat(found[1]).st_rdev)}, {os.minor(os.stat(found[1]).st_rdev)})
tried['mine'] = about.st_uid == os.getuid()
tried['mode'] = about.st_mode & 0o777
attempt('other', lambda: os.stat({found[0]!r}))
"""
    async with box.runtime() as runtime:
        with pytest.raises(StartFailed, match=r"devices: accelerator 2 has no device nodes .* BORGLET_DEVICES"):
            await runtime.start(a_task("true", devices=[2]), run=1)
        told = await report_of(runtime, program, devices=[1])
    assert (told["own"], told["mine"], told["mode"], told["other"]) == (True, True, 0o600, "ENOENT")


async def test_its_control_group_denies_what_its_folder_would_not(box: Machine) -> None:
    """Check that version 1 of control groups allows a container only the usual devices.

    So even a device node that the machine's administrator puts into its /dev is closed.
    """
    async with box.runtime() as runtime:
        if runtime.attributes()["isolation.devices"] != "cgroup-v1":
            assert runtime.attributes()["isolation.devices"] == "nodes"
            return
        await runtime.start(a_task("sleep", "100"), run=1)
        task = await process_of(box)
        path = next(
            line.split(":", 2)[2]
            for line in Path(f"/proc/{task}/cgroup").read_text().splitlines()
            if line.split(":", 2)[1] == "devices"
        )
        listed = Path("/sys/fs/cgroup/devices", path.lstrip("/"), "devices.list").read_text().splitlines()
        assert sorted(listed) == sorted(f"c {device} rw" for device in USUAL)
        await runtime.stop(key(), notice_s=0, cause=EndCause.STOPPED)
        await end_of(runtime)
    assert not Path("/sys/fs/cgroup/devices", path.lstrip("/")).exists()
