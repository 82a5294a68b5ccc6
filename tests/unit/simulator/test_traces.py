"""Tests of the readers of public traces, with small files of the same format."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from quota.vocabulary.resources import ACCELERATORS, CPU, RAM
from scheduling.core.vocabulary import events
from scheduling.simulator.sessions.sources import open_source
from scheduling.simulator.traces import cell_2011, google2011, openb, week_2011
from tests.builders import GIB


def packed(path: Path, lines: list[str]) -> None:
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture
def google(tmp_path: Path) -> Path:
    packed(
        tmp_path / google2011.MACHINE_EVENTS,
        [
            "0,5,0,HofLGz,0.5,0.25",
            "0,7,0,HofLGz,1,1",
            "60000000,5,1,HofLGz,,",
            "90000000,5,0,HofLGz,0.5,0.25",
            "95000000,7,2,HofLGz,0.5,1",
            "99000000,9,0,HofLGz,0.5,0.5",
        ],
    )
    packed(tmp_path / google2011.FIFTH_MACHINES, ["machine,platform,cpu,mem", "5,HofL,0.5,0.25", "7,HofL,1,1"])
    packed(
        tmp_path / google2011.FIFTH_TASKS,
        [
            "job,task,priority,sched_class,cpu,mem,disk,different_machines,state,machine",
            "31,0,9,3,0.0625,0.0625,0.0005,1,RUNNING,5",
            "31,1,9,3,0.0625,0.0625,0.0005,1,RUNNING,7",
            "32,0,0,0,0.03125,0,0,0,PENDING,",
        ],
    )
    packed(
        tmp_path / google2011.JOBS,
        [
            "job_id,submit_ms,first_schedule_ms,end_ms,end_event,scheduling_class,user,logical_name",
            "1,0,0,,,3,1,1",
            "2,1000,2000,42000,4,0,1,1",
            "3,50000,50500,51000,5,0,1,1",
        ],
    )
    return tmp_path


def test_a_month_has_machines_failures_and_jobs(google: Path) -> None:
    machines, workload = google2011.month(google)
    assert [one.capacity[CPU] for one in machines] == [32_000, 64_000]
    assert machines[0].capacity[RAM] == 64 * GIB
    changes = [(change.at, change.machine_id, change.facts is None) for change in workload.changes]
    assert changes == [(60.0, 1, True), (90.0, 1, False), (95.0, 2, False), (99.0, 3, False)]
    jobs = [workload.arrivals.job(number) for number in range(3)]
    assert [job.priority for job in jobs] == [200, 0, 0]
    assert jobs[0].groups[0].requirement.limit[:2] == (4_000, 16 * GIB)
    assert jobs[1].groups[0].requirement.limit[:2] == (2_000, 1)
    assert workload.behaviour.ending(1 << 20, 1, 200) is None
    ending = workload.behaviour.ending(2 << 20, 1, 0)
    assert ending is not None
    assert (ending.after_s, ending.how) == (40.0, "finished")


def test_a_month_can_be_simulated(google: Path) -> None:
    one = open_source("google2011", google)
    one.run(200.0)
    figures = one.cell.keeper.figures
    assert (figures.submitted, figures.failures) == (3, 1)
    assert (figures.ended["finished"], figures.ended["killed"]) == (1, 1)
    assert one.state.running == 1
    assert len(one.state.machines) == 3


def test_a_moment_is_cloned_to_full_size(google: Path) -> None:
    beginning, _ = cell_2011.moment(google, clones=5)
    names = [getattr(event, "name", "") for event in beginning]
    assert len([name for name in names if not name]) == 10
    assert names[-2:] == ["j31-4", "j32-4"]
    job = beginning[-2]
    assert job.groups[0].ranges == ((0, 1),)
    assert job.groups[0].requirement.max_per_machine == 1


def test_missing_files_and_unknown_sources_are_named(google: Path) -> None:
    with pytest.raises(ValueError, match="the sources are drawn, google2011"):
        open_source("google1999", google)
    with pytest.raises(FileNotFoundError, match="give the folder with the files of Google's trace"):
        open_source("google2011", google / "nowhere")
    with pytest.raises(FileNotFoundError, match="give the folder with the files of the openb trace"):
        open_source("openb", google)


def test_openb_has_gpus_and_their_models(tmp_path: Path) -> None:
    (tmp_path / openb.MACHINES).write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn1,32000,262144,2,T4\nn2,32000,1024,0,\n"
    )
    (tmp_path / openb.PODS).write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time,scheduled_time\n"
        "b,1000,1024,1,500,T4,LS,20,,20\n"
        "a,1000,1024,2,1000,,BE,10,15,11\n"
    )
    machines, workload = openb.trace(tmp_path)
    assert [machine.capacity[ACCELERATORS] for machine in machines] == [2000, 0]
    first, second = (workload.arrivals.job(number) for number in range(2))
    assert (first.priority, second.priority) == (25, 200)
    assert [job.groups[0].requirement.limit[ACCELERATORS] for job in (first, second)] == [2000, 500]
    assert second.groups[0].requirement.constraints[0].value == "T4"
    one = open_source("openb", tmp_path)
    one.run(30.0)
    assert (one.cell.keeper.figures.ended["finished"], one.state.running) == (1, 1)


def test_a_week_has_the_fifth_and_every_fifth_job_that_arrives(google: Path) -> None:
    lines = [f"{number},{1000 * number},{1000 * number},{1000 * (2 * number + 1)},4,0,1,1" for number in range(7)]
    header = "job_id,submit_ms,first_schedule_ms,end_ms,end_event,scheduling_class,user,logical_name"
    packed(google / google2011.JOBS, [header, *lines])
    beginning, workload = week_2011.week(google)
    jobs = [event for event in beginning if isinstance(event, events.JobSubmitted)]
    assert [one.job_id for one in jobs] == [1, 2]
    assert workload.arrivals.times.tolist() == [0.0, 5.0]
    assert [workload.arrivals.job(number).job_id for number in range(2)] == [3, 4]
    assert workload.behaviour.ending(4 << 20, 1, 0) == (6.0, "finished")
    assert workload.behaviour.ending(1 << 20, 1, 200) is None, "a service of the fifth runs all the time"
