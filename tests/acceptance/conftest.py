"""One installation for all tests that only disturb it; those that stop it make their own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from portal.up.home import Home
from tests.acceptance.installation import ROOT, Installation, wait_for
from tests.migrated import copy_postgres


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the shared installation on one worker (`--dist loadgroup`)."""
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("shared"))


@contextmanager
def installation_in_a_folder() -> Iterator[Installation]:
    """Not started yet. In a folder that others may pass: tasks may run as somebody else."""
    folder = Path(tempfile.mkdtemp(prefix="borg-up-"))
    folder.chmod(0o711)
    made = Installation(folder / "home")
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder)


def say_hello(there: Installation) -> None:
    there.borgctl("submit", str(ROOT / "examples" / "hello.jsonnet"))
    wait_for(lambda: there.up("hello"), 90.0, story=lambda: there.borgctl("why", "hello"))
    # Started is not yet listening.
    wait_for(lambda: len(there.task_pids("hello")) == 3, 90.0, story=lambda: there.tasks("hello"))


@pytest.fixture(scope="session")
def shared() -> Iterator[Installation]:
    """Up, with the three servers of `hello` running."""
    with installation_in_a_folder() as made:
        made.start()
        say_hello(made)
        yield made


@pytest.fixture
def new() -> Iterator[Installation]:
    """An installation that has never started. The test may start and stop it as it likes."""
    with installation_in_a_folder() as made:
        yield made


@pytest.fixture
def own(new: Installation) -> Installation:
    """An installation like `new`, but with a database that is migrated, so that the first start takes less time."""
    Home(new.home).prepare()
    copy_postgres(new.home)
    return new
