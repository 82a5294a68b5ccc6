"""Tests of experiments with Google's cell of 2011, and of the command that runs them, on files of a few lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from portal.cli.main import main as borgctl
from scheduling.core.vocabulary.requirement import Constraint, Relation
from scheduling.simulator.experiments.__main__ import main
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.experiments.packing.fifth_of_cell_2011 import fifth, running_fifth, soft_where_rare
from tests.unit.experiments.small_inputs import cell, job

TASKS = """job,task,priority,sched_class,cpu,mem,disk,different_machines,state,machine
10,4,9,3,0.0625,0.1,0.001,1,RUNNING,1
10,7,9,3,0.125,0.1,0.001,1,RUNNING,2
10,9,9,3,0.0625,0.1,0.001,1,RUNNING,3
11,0,2,0,0.0625,0.05,0,0,RUNNING,1
11,1,2,0,0.0625,0.05,0,0,PENDING,
12,0,0,0,0.5,0.05,0,0,PENDING,
"""
MACHINES = "machine,platform,cpu,mem\n" + "".join(f"{n},Hof,0.5,0.5\n" for n in range(8))
JOBS = """job_id,submit_ms,first_schedule_ms,end_ms,end_event,scheduling_class,user,logical_name
10,0,0,,,3,15,130
11,0,0,,,0,7,131
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    files = {"cell_tasks_t0_dev20": TASKS, "cell_machines_dev20": MACHINES, "jobs_29days_compact": JOBS}
    for name, text in files.items():
        with gzip.open(tmp_path / f"{name}.csv.gz", "wt") as file:
            file.write(text)
    return tmp_path


def test_tasks_of_a_job_are_counted_from_zero_and_grouped_by_request(data: Path) -> None:
    web, batch, free = fifth(data, constraints=False).jobs
    assert [(group.requirement.limit[0], group.ranges) for group in web.groups] == [
        (4000, ((0, 0), (2, 2))),
        (8000, ((1, 1),)),
    ]
    assert [web.priority, batch.priority, free.priority] == [200, 102, 0]
    assert web.groups[0].requirement.max_per_machine == 1
    assert batch.groups[0].requirement.max_per_machine == 0
    assert web.tenant == "t10"


def test_clones_have_new_jobs_and_machines(data: Path) -> None:
    twice = fifth(data, 2)
    once = fifth(data)
    assert (len(twice.machines), twice.tasks) == (16, 2 * once.tasks)
    assert len({job.name for job in twice.jobs}) == len({job.job_id for job in twice.jobs}) == 6
    assert [m.attributes for m in twice.machines[8:]] == [m.attributes for m in once.machines]


def test_the_seed_draws_the_attributes(data: Path) -> None:
    assert fifth(data, seed=1) == fifth(data, seed=1) != fifth(data, seed=2)


def test_running_tasks_belong_to_the_users_of_the_trace(data: Path) -> None:
    work = running_fifth(data)
    assert [(job.name, job.tenant) for job in work.jobs] == [("j10-0", "u15"), ("j11-0", "u7")]
    assert work.tasks == 4


def test_a_constraint_is_soft_if_few_machines_satisfy_it() -> None:
    flash = Constraint("flash", Relation.PRESENT)
    plain = cell(4, job(1, tasks=1, cpu=1), job(2, tasks=2, cpu=1))
    changed = msgspec.structs.replace
    machines = [
        changed(machine, attributes={"flash": "true"} if n < 2 else {}) for n, machine in enumerate(plain.machines)
    ]
    jobs = []
    for one in plain.jobs:
        requirement = changed(one.groups[0].requirement, constraints=(flash,))
        jobs.append(changed(one, groups=(changed(one.groups[0], requirement=requirement),)))
    work = CellWork(tuple(machines), tuple(jobs))
    one, two = soft_where_rare(work).jobs
    assert one == work.jobs[0]
    assert [c.hard for c in two.groups[0].requirement.constraints] == [False]


def test_the_command_runs_and_prints_a_table(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        borgctl(["experiment", "shapes", "compaction", "--data", str(data), "--output", str(target), "--trials", "1"])
    out, err = capfd.readouterr()
    assert ended.value.code == 0, err
    assert "compaction: compacted cell: " in out
    assert "/2 shapes, seed 0" in err
    assert (target / "report.html").exists()


def test_wrong_arguments_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    assert main(["shapes", "--data", str(tmp_path), "--output", str(target)]) == 1
    assert "does not exist; give the folder with the files of Google's trace" in capsys.readouterr().err
    assert main(["shapes", "--data", str(tmp_path), "--output", str(target), "--jobs", "0"]) == 1
    with pytest.raises(SystemExit) as ended:
        main(["figure-4", "--data", str(tmp_path), "--output", str(target)])
    assert ended.value.code == 2
    assert not target.exists()
