"""Fixtures: one running installation that most tests share, and one for each test that stops its installation."""

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
    """Put all tests that use the fixture `shared` into one group, which one worker of pytest-xdist runs."""
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("shared"))


@contextmanager
def installation_in_a_folder() -> Iterator[Installation]:
    """Yield an installation that is not started yet, in a temporary folder. At the end it is stopped and deleted.

    Tasks may run as another user, so the mode of the folder lets all users pass through.
    """
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
    # A started process does not listen at once.
    wait_for(lambda: len(there.task_pids("hello")) == 3, 90.0, story=lambda: there.tasks("hello"))


@pytest.fixture(scope="session")
def shared() -> Iterator[Installation]:
    """Yield an installation that is up and runs the job `hello`, whose three tasks already accept connections."""
    with installation_in_a_folder() as made:
        made.start()
        say_hello(made)
        yield made


@pytest.fixture
def new() -> Iterator[Installation]:
    """Yield an installation that has never started. The test may start and stop it at any time."""
    with installation_in_a_folder() as made:
        yield made


@pytest.fixture
def own(new: Installation) -> Installation:
    """Return an installation whose database is already migrated, so that its first start is shorter."""
    Home(new.home).prepare()
    copy_postgres(new.home)
    return new
