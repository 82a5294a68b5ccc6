"""Runs of trials in several processes. Finished trials are stored as JSON lines, and a later run skips them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduling.simulator.experiments.catalogue import CASES
from scheduling.simulator.experiments.experiment import Experiment, ExperimentInput, Figures

FILE = "trials.jsonl"

_given: dict[str, ExperimentInput] = {}  # the input of this worker process, the same for all its trials


@dataclass(frozen=True, order=True)
class Trial:
    """One run of a case. `case`: the name of the case, which decides what is computed. `seed`: decides all random
    values.
    """

    case: str
    seed: int


def wanted_trials(experiments: Sequence[Experiment], number: int) -> list[Trial]:
    """Return the trials that the experiments need, each once. `number`: trials per case, with the seeds from 0. All
    trials with one seed come first, so that an interrupted run has some trials of every case.
    """
    cases = {case: one.once for one in experiments for case in one.cases}
    return [Trial(case, seed) for seed in range(number) for case, once in cases.items() if seed == 0 or not once]


class TrialStore:
    """The finished trials in an output folder. `fingerprint`: the fingerprint of the input
    (`ExperimentInput.fingerprint`).

    Raises `ValueError` if the folder has trials of another input.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.path = folder / FILE
        self.fingerprint = fingerprint
        self.finished: dict[Trial, Figures] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for record in self._records():
            if record["input"] != fingerprint:
                raise ValueError(
                    f"{self.path} has trials of another cell (input {record['input']}, not {fingerprint});"
                    " choose another output folder, or delete the file"
                )
            self.finished[Trial(record["case"], record["seed"])] = record["figures"]

    def add(self, trial: Trial, figures: Figures) -> None:
        """Store a finished trial on disk."""
        record = {"input": self.fingerprint, "case": trial.case, "seed": trial.seed, "figures": figures}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.finished[trial] = figures

    def of(self, case: str) -> list[Figures]:
        """Return the figures of the finished trials of a case, in the order of the seeds."""
        return [self.finished[trial] for trial in sorted(self.finished) if trial.case == case]

    def _records(self) -> Iterator[dict[str, Any]]:
        """Yield the stored records. A last line that was not written completely is removed from the file."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with self.path.open("r+b") as file:
                file.truncate(whole)
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"{self.path}, line {number}: not a JSON object; delete the line") from error


Progress = Callable[[Trial, int, int], None]
"""A function that is called with each finished trial, the number of finished trials, and the number of all."""


def unfinished(
    trials: Sequence[Trial], store: TrialStore, progress: Progress
) -> tuple[list[Trial], Callable[[Trial, Figures], None]]:
    """Return the trials that are not in the store, and a function that stores a finished trial and then calls
    `progress`.
    """
    missing = [trial for trial in trials if trial not in store.finished]
    finished = len(trials) - len(missing)

    def take(trial: Trial, figures: Figures) -> None:
        nonlocal finished
        store.add(trial, figures)
        finished += 1
        progress(trial, finished, len(trials))

    return missing, take


def run_trials(
    load: Callable[[], ExperimentInput], trials: Sequence[Trial], store: TrialStore, *, jobs: int, progress: Progress
) -> None:
    """Run the trials that are not in the store, and add each one as soon as it has finished.

    `load`: returns the input; each process calls it once. It must be picklable if `jobs`, the number of processes, is
    above 1.
    """
    missing, take = unfinished(trials, store, progress)
    if jobs <= 1 or len(missing) <= 1:
        given = load() if missing else None
        for trial in missing:
            assert given is not None
            take(trial, CASES[trial.case](given, trial.seed))
        return
    with ProcessPoolExecutor(min(jobs, len(missing)), initializer=_begin, initargs=(load,)) as pool:
        running = {pool.submit(_run, trial): trial for trial in missing}
        try:
            for done in as_completed(running):
                take(running[done], done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(load: Callable[[], ExperimentInput]) -> None:
    _given["input"] = load()


def _run(trial: Trial) -> Figures:
    return CASES[trial.case](_given["input"], trial.seed)
