"""Rewrites the assertions of test modules before the workers of pytest-xdist start.

pytest rewrites each module at its first import and keeps the result. In a new checkout all workers import the modules
at the same time, so each worker would rewrite all of them: 8 to 10 s of CPU per worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_once(config: pytest.Config) -> None:
    """Rewrite the modules below the paths of the command line that have changed, on two cores. Return at once in a
    worker, and in a run without workers.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        return
    if rewrite.assertstate_key not in config.stash:  # with --assert=plain
        return
    changed = [module for module in _modules(config.args) if _is_old(module)]
    if not changed:
        return
    child = os.fork()
    if child == 0:
        try:
            _rewrite_all(changed[1::2], config)
        finally:
            os._exit(0)  # even after an error, so that only the parent cleans up
    _rewrite_all(changed[::2], config)
    os.waitpid(child, 0)


def _modules(arguments: Iterable[str]) -> list[Path]:
    paths = {Path(argument.partition("::")[0]).resolve() for argument in arguments}
    found = {file for path in paths for name in ("test_*.py", "conftest.py") for file in path.rglob(name)}
    return sorted(found)


def _is_old(module: Path) -> bool:
    kept = _kept(module)
    return not kept.exists() or kept.stat().st_mtime < module.stat().st_mtime


def _rewrite_all(modules: Iterable[Path], config: pytest.Config) -> None:
    for module in modules:
        try:
            digest, code = rewrite._rewrite_test(module, config)
        except (SyntaxError, ValueError):  # the workers that import it report this
            continue
        _kept(module).parent.mkdir(exist_ok=True)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, _kept(module))


def _kept(module: Path) -> Path:
    return rewrite.get_cache_dir(module) / f"{module.stem}{rewrite.PYC_TAIL}"
