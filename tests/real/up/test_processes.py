"""Tests of the table of processes of `make up`: their stop times and the check that they are alive."""

import os
import time
from pathlib import Path

import pytest

from portal.up.home import Home
from portal.up.options import Options
from portal.up.processes import LONGEST_NOTICE_S, machine_names, machines, servers, spares, stop_tasks
from quota.vocabulary.errors import Rejected
from scheduling.master.lease import STUCK_AFTER_S
from scheduling.spec.parser import parse


@pytest.mark.parametrize(("more_s", "fits"), [(0.0, True), (1.0, False)])
def test_tasks_are_stopped_with_the_longest_notice_a_job_may_ask_for(more_s: float, fits: bool) -> None:
    notice_s = LONGEST_NOTICE_S + more_s
    document = {"name": "a", "task": {"command": ["true"], "notice_s": notice_s}}
    if fits:
        parse(document)
    else:
        with pytest.raises(Rejected, match="notice_s"):
            parse(document)
    assert stop_tasks(Home(Path("/home")), {}).start_s > LONGEST_NOTICE_S


def test_a_master_needs_no_redis_and_is_not_killed_while_it_may_hold_its_lease(tmp_path: Path) -> None:
    specs = servers(Options.read({"BORG_HOME": str(tmp_path)}), Home(tmp_path), {})
    master = next(spec for spec in specs if spec.name == "master")
    assert "redis" not in master.needs
    assert master.pulse is not None
    assert master.alive is not None
    master.pulse.parent.mkdir(parents=True)
    master.pulse.touch()
    for age_s, well in ((STUCK_AFTER_S - 5, True), (STUCK_AFTER_S + 5, False)):
        old = time.time() - age_s
        os.utime(master.pulse, (old, old))
        assert (master.alive() is None) is well


def test_each_cell_has_its_masters_and_its_simulated_machines(tmp_path: Path) -> None:
    env = {"BORG_HOME": str(tmp_path), "CELLS": "dev,prod", "STANDBYS": "1", "MACHINES": "simulated:2"}
    options, home = Options.read(env), Home(tmp_path)
    masters = {spec.name: spec.argv[-1] for spec in (*servers(options, home, {}), *spares(options, home, {}))}
    assert {name: cell for name, cell in masters.items() if name.startswith(("master", "standby"))} == {
        "master": "dev",
        "standby-1": "dev",
        "master-batch": "dev.batch",
        "master-prod": "prod",
        "standby-1-prod": "prod",
        "master-batch-prod": "prod.batch",
    }
    fleets = machines(options, home, {}, {"borglet": "a", "fleet": "b", "fleet-prod": "c"})
    assert [spec.env.get("BORGLET_JOIN_TOKEN") for spec in fleets] == ["a", "b", "c"]
    assert [spec.name for spec in fleets] == machine_names(options)
    assert len({spec.argv[spec.argv.index("--home") + 1] for spec in fleets}) == 3


def test_a_link_shard_is_judged_by_the_file_that_its_loop_touches(tmp_path: Path) -> None:
    specs = servers(Options.read({"BORG_HOME": str(tmp_path)}), Home(tmp_path), {})
    link = next(spec for spec in specs if spec.name == "link")
    assert link.pulse is not None
    assert link.env["BORG_PULSE"] == str(link.pulse)
    assert link.ready is not None
    assert link.alive is not None
    link.pulse.parent.mkdir(parents=True)
    assert "no heartbeat" in (link.alive() or "")
    link.pulse.touch()
    assert link.ready() is None
    assert link.alive() is None
