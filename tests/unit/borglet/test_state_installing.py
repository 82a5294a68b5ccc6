"""Tests of the Borglet's decisions while packages of a task are installed."""

from __future__ import annotations

from borglet.messages import EndCause, Exit, Phase, SecretRef
from borglet.runtimes.base.runtime import Presence
from borglet.state.events import InstallFailed
from borglet.state.instructions import CancelInstall, Install, Resize
from tests.unit.borglet.builders import Machine, desired, exited, key, package, policy, run_task, starts, stop_task

APP = package()
TASK = run_task(packages=[APP])


def installing(revision: int = 1) -> Machine:
    machine = Machine()
    assert machine.wants(desired(revision, [TASK])) == [Install(TASK, 1)]
    return machine


def test_packages_are_installed_before_the_start_and_found_again_before_a_restart() -> None:
    machine = installing()
    assert (machine.phase(key()), machine.of(key()).restarts) == (Phase.INSTALLING, 0)
    assert starts(machine.installed(key())) == [(key(), 1)]
    machine.up(key())
    machine.ends(key(), exited(1))
    assert machine.after(1.0) == [Install(TASK, 2)]
    assert starts(machine.installed(key(), run=2)) == [(key(), 2)]


def test_a_failed_installation_is_a_failed_start_that_says_why() -> None:
    task = run_task(packages=[APP], restart=policy(max_failures=1, backoff_s=2.0))
    machine = Machine()
    machine.wants(desired(1, [task]))
    assert machine.take(InstallFailed(key(), 1, "package 'app@v1': no source has it")) == []
    told = machine.of(key())
    assert told.phase is Phase.BACKOFF
    assert told.exit == Exit(EndCause.START_FAILED, 1000.0, detail="package 'app@v1': no source has it")
    assert machine.after(1.9) == []
    assert machine.after(0.1) == [Install(task, 2)]
    machine.take(InstallFailed(key(), 2, "no source has it"))
    told = machine.of(key())
    assert told.exit is not None
    assert (told.phase, "crash loop: 2 failures" in told.exit.detail) == (Phase.ENDED, True)
    assert [given.key for given in machine.saved.given_up] == [key()]


def test_a_stop_cancels_the_installation_and_its_late_end_starts_nothing() -> None:
    machine = installing()
    assert machine.wants(desired(2, [], [stop_task()])) == [CancelInstall(key())]
    told = machine.of(key())
    assert told.exit is not None
    assert (told.phase, told.exit.cause) == (Phase.ENDED, EndCause.STOPPED)
    assert machine.installed(key()) == []


def test_a_task_that_is_dropped_while_installing_is_forgotten_unless_it_has_run() -> None:
    machine = installing()
    assert machine.wants(desired(2, [])) == [CancelInstall(key())]
    assert machine.report().tasks == []
    machine = installing()
    machine.installed(key())
    machine.up(key())
    machine.ends(key(), exited(3))
    machine.after(1.0)
    assert machine.wants(desired(2, [])) == [CancelInstall(key())]
    told = machine.of(key())
    assert (told.phase, told.exit) == (Phase.ENDED, exited(3))


def test_packages_are_installed_while_the_predecessor_still_leaves() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task(5)]))
    machine.up(key(5))
    waiting = run_task(packages=[APP], waits_for=[key(5)])
    out = machine.wants(desired(2, [waiting], [stop_task(5)]))
    assert Install(waiting, 1) in out
    assert machine.installed(key()) == []
    assert machine.phase(key()) is Phase.INSTALLING
    assert starts(machine.ends(key(5), exited(0))) == [(key(), 1)]


def test_a_new_borglet_installs_again_what_it_finds_half_installed() -> None:
    machine = installing()
    again = machine.restarted()
    assert again.first == [Install(TASK, 1)]


def test_packages_of_all_that_may_start_again_are_in_use() -> None:
    other = package("lib@v2", "b")
    machine = Machine((Presence(run_task(3, packages=[other]), 1, 900.0, None),))
    assert machine.state.packages_in_use() == {other.digest}
    machine.wants(desired(1, [TASK]))
    assert machine.state.packages_in_use() == {APP.digest, other.digest}
    machine.wants(desired(2, [], [stop_task(), stop_task(3)]))
    assert machine.state.packages_in_use() == {other.digest}
    machine.ends(key(3), exited(0))
    assert machine.state.packages_in_use() == set()


def test_other_packages_need_a_new_incarnation() -> None:
    machine = installing()
    changed = run_task(packages=[package(digit="c")])
    machine.wants(desired(2, [changed]))
    refused = machine.report().refused
    assert refused is not None
    assert (refused.code, refused.field) == ("changed-in-place", "desired.run[0].packages")


def test_values_are_requested_again_if_a_secret_changes_before_the_start() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task(5)]))
    machine.up(key(5))
    old = run_task(secrets=[SecretRef("db", 1, env="DB")], waits_for=[key(5)])
    assert Install(old, 1) in machine.wants(desired(2, [old], [stop_task(5)]))
    assert machine.installed(key()) == []
    new = run_task(secrets=[SecretRef("db", 2, env="DB")], waits_for=[key(5)])
    assert machine.wants(desired(3, [new], [stop_task(5)])) == [Install(new, 1)]
    assert starts(machine.ends(key(5), exited(0))) == [], "the values are on their way"
    assert starts(machine.installed(key())) == [(key(), 1)]


def test_a_new_version_of_a_secret_reaches_a_running_task() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task(secrets=[SecretRef("db", 1, "password")])]))
    machine.installed(key())
    machine.up(key())
    new = run_task(secrets=[SecretRef("db", 2, "password")])
    assert machine.wants(desired(2, [new])) == [Resize(new)]
