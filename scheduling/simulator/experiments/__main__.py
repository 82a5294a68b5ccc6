"""`python -m scheduling.simulator.experiments NAME… --data FOLDER --output FOLDER` runs experiments of §5."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from scheduling.simulator.experiments.catalogue import EXPERIMENTS
from scheduling.simulator.experiments.charts import format_value
from scheduling.simulator.experiments.dask_cluster import run_on_dask
from scheduling.simulator.experiments.inputs import checkpoint_input, trace_input
from scheduling.simulator.experiments.report import FILE, write_report
from scheduling.simulator.experiments.trials import Trial, TrialStore, run_trials, wanted_trials

TRIALS = 11
"""Trials per case (§5.1)."""

ALL = "all"


def main(arguments: list[str] | None = None) -> int:
    """Run the experiments that the arguments name, write the report, and return the exit status."""
    given = _parser().parse_args(arguments)
    names = list(EXPERIMENTS) if ALL in given.names else given.names
    experiments = [one for name, one in EXPERIMENTS.items() if name in names]
    if given.trials < 1 or given.jobs < 1:
        return _fail("--trials and --jobs must be at least 1")
    load = partial(trace_input, given.data) if given.data else partial(checkpoint_input, given.checkpoint)
    try:
        cell = load()
        store = TrialStore(given.output, cell.fingerprint())
        trials = wanted_trials(experiments, given.trials)
        finished = sum(trial in store.finished for trial in trials)
        print(f"{len(trials)} trials, {finished} of them finished before", file=sys.stderr)
        if given.dask:
            run_on_dask(given.dask, cell, trials, store, progress=_show)
        else:
            run_trials(load, trials, store, jobs=given.jobs, progress=_show)
    except (OSError, ValueError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail(f"interrupted; repeat the command to continue, {given.output} has the finished trials")
    found = write_report(given.output, experiments, store, described=cell.source)
    for name, rows in found.items():
        for row in rows:
            spread = f"{format_value(row.low)} to {format_value(row.high)}"
            print(f"{name}: {row.label}: {format_value(row.value)} {row.unit} ({spread}); {row.verdict()}")
    print(f"report: {given.output / FILE}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="borgctl experiment", description="Run experiments of the Borg paper (§5).")
    names = (*EXPERIMENTS, ALL)
    parser.add_argument("names", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="Folder with the files of Google's trace of 2011.")
    source.add_argument("--checkpoint", type=Path, help="A checkpoint of a cell, instead of the trace.")
    parser.add_argument("--output", type=Path, required=True, help="Folder for finished trials and the report.")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"Trials per case. Default: {TRIALS}.")
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cores, help="Processes. Default: the number of cores.")
    parser.add_argument("--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster, instead of processes.")
    return parser


def _show(trial: Trial, finished: int, number: int) -> None:
    print(f"{finished}/{number} {trial.case}, seed {trial.seed}", file=sys.stderr, flush=True)


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
