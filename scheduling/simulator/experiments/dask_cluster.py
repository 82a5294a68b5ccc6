"""Runs of trials on a Dask cluster. Its workers need the packages of this project, but not the files of the input.

The package `distributed` is optional: `pip install borg-portal[dask]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduling.simulator.experiments.catalogue import CASES
from scheduling.simulator.experiments.experiment import ExperimentInput, Figures
from scheduling.simulator.experiments.trials import Progress, Trial, TrialStore, unfinished

_CONNECT_S = 30.0


def run_on_dask(
    address: str, given: ExperimentInput, trials: Sequence[Trial], store: TrialStore, *, progress: Progress
) -> None:
    """Run the trials that are not in the store on a Dask cluster, and add each one as soon as it has finished.

    `address`: the address of the scheduler of the cluster, such as `tcp://10.0.0.5:8786`. Each worker receives the
    input once. Raises `ValueError` with the cure if the package is missing, if nobody answers, or if the cluster has no
    workers.
    """
    try:
        import distributed
    except ImportError as error:
        raise ValueError("--dask needs the Python package distributed; install borg-portal[dask]") from error
    missing, take = unfinished(trials, store, progress)
    if not missing:
        return
    dask: Any = distributed
    try:
        client = dask.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        problem = f"--dask {address}: cannot connect to a Dask scheduler ({error}); check the address, and start one"
        raise ValueError(problem) from error
    with client:
        if not client.nthreads():
            raise ValueError(f"--dask {address}: the cluster has no workers; start some with: dask worker {address}")
        shared = client.scatter(given, broadcast=True)
        running = {client.submit(_run, shared, trial.case, trial.seed, pure=False): trial for trial in missing}
        for done in dask.as_completed(running, loop=client.loop):
            take(running[done], done.result())


def _run(given: ExperimentInput, case: str, seed: int) -> Figures:
    return CASES[case](given, seed)
