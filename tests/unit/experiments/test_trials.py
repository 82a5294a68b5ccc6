"""Tests of how trials of experiments run: processes, progress, continuation after an interruption, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduling.simulator.experiments.catalogue import EXPERIMENTS
from scheduling.simulator.experiments.charts import bar_chart, format_value, line_chart
from scheduling.simulator.experiments.dask_cluster import run_on_dask
from scheduling.simulator.experiments.experiment import LineChart, Row
from scheduling.simulator.experiments.report import write_report
from scheduling.simulator.experiments.trials import Trial, TrialStore, run_trials, wanted_trials
from tests.unit.experiments.small_inputs import mixed

TWO = [EXPERIMENTS["compaction"], EXPERIMENTS["segregation"]]


def run(folder: Path, trials: list[Trial], jobs: int = 1) -> tuple[TrialStore, list[tuple[str, int, int, int]]]:
    store = TrialStore(folder, mixed().fingerprint())
    seen = []
    run_trials(mixed, trials, store, jobs=jobs, progress=lambda t, n, m: seen.append((t.case, t.seed, n, m)))
    return store, seen


def test_experiments_share_trials_and_each_seed_is_complete_before_the_next() -> None:
    trials = wanted_trials([*TWO, EXPERIMENTS["shapes"]], 2)
    assert trials == [
        Trial("whole", 0),
        Trial("segregated", 0),
        Trial("shapes", 0),
        Trial("whole", 1),
        Trial("segregated", 1),
    ]


def test_a_repeated_run_continues_after_the_finished_trials(tmp_path: Path) -> None:
    _, seen = run(tmp_path, wanted_trials(TWO, 1))
    assert seen == [("whole", 0, 1, 2), ("segregated", 0, 2, 2)]
    store, seen = run(tmp_path, wanted_trials(TWO, 2))
    assert seen == [("whole", 1, 3, 4), ("segregated", 1, 4, 4)]
    assert [one["machines"] for one in store.of("whole")] == [4, 4]
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 4


def test_a_half_written_line_is_removed_and_its_trial_runs_again(tmp_path: Path) -> None:
    run(tmp_path, wanted_trials(TWO, 1))
    path = tmp_path / "trials.jsonl"
    whole, segregated = path.read_text().splitlines(keepends=True)
    path.write_text(whole + segregated[:-9])
    _, seen = run(tmp_path, wanted_trials(TWO, 1))
    assert seen == [("segregated", 0, 2, 2)]
    assert [json.loads(line)["case"] for line in path.read_text().splitlines()] == ["whole", "segregated"]


def test_trials_of_another_cell_are_rejected_and_kept(tmp_path: Path) -> None:
    run(tmp_path, [Trial("shapes", 0)])
    before = (tmp_path / "trials.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"trials of another cell .* choose another output folder"):
        TrialStore(tmp_path, mixed(11).fingerprint())
    assert (tmp_path / "trials.jsonl").read_bytes() == before


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_text("{}}\n")
    with pytest.raises(ValueError, match="line 1: not a JSON object"):
        TrialStore(tmp_path, "x")


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    trials = wanted_trials(TWO, 1)
    one, _ = run(tmp_path / "one", trials)
    two, seen = run(tmp_path / "two", trials, jobs=2)
    assert one.finished == two.finished
    assert [(number, of) for _, _, number, of in seen] == [(1, 2), (2, 2)]


def test_a_dask_cluster_finds_what_one_process_finds(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    trials = wanted_trials(TWO, 1)
    one, _ = run(tmp_path / "one", trials)
    store = TrialStore(tmp_path / "dask", one.fingerprint)
    seen = []
    local = {"n_workers": 1, "processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**local) as cluster:
        address = cluster.scheduler_address
        run_on_dask(address, mixed(), trials, store, progress=lambda t, n, m: seen.append((n, m)))
    assert store.finished == one.finished
    assert seen == [(1, 2), (2, 2)]


def test_the_report_is_one_file_with_the_papers_numbers_beside_ours(tmp_path: Path) -> None:
    experiments = [*TWO, EXPERIMENTS["shapes"]]
    store, _ = run(tmp_path, wanted_trials(experiments, 1))
    rows = write_report(tmp_path, experiments, store, described="A <small> cell.")
    page = (tmp_path / "report.html").read_text()
    assert rows["segregation"][0].value == 100
    assert "Ours, two cells: 100 % more machines, above the paper&#x27;s 20–30 % more machines." in page
    assert "A &lt;small&gt; cell." in page
    assert page.count("<h2>") == 3
    assert page.count("<svg") == page.count("</svg>") >= 4
    assert not any(outside in page for outside in ("http:", "https:", "src=", "<link", "<script"))


def test_a_report_without_trials_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run the experiment first"):
        write_report(tmp_path, TWO, TrialStore(tmp_path, "x"), described="")


def test_a_bar_is_as_long_as_its_value() -> None:
    drawn = bar_chart([Row("all", "%", 100, 90, 100), Row("half", "%", 50, 50, 50, 40, 60)])
    assert 'width="440.0"' in drawn  # 860 without the labels at the left and the space at the right
    assert 'width="220.0"' in drawn
    assert 'width="88.0" height="26.0" fill="#dadce0"' in drawn  # the paper's 40 to 60 %


def test_the_points_of_a_line_are_scaled_to_the_axes() -> None:
    chart = LineChart("t", "x", "y", {"a": ((1.0, 0.0), (10.0, 5.0), (100.0, 10.0))}, logarithmic=True)
    assert 'points="60.0,260.0 455.0,138.0 850.0,16.0"' in line_chart(chart)
    assert "no points" in line_chart(LineChart("t", "x", "y", {}))


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (39.54, "39.5"), (0.0, "0"), (-12.0, "-12")])
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_value(value) == text
