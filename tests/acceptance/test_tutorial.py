"""Test that every command of the tutorial succeeds on a new installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance import tutorial
from tests.acceptance.installation import Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]
# Expected parts of the output of some commands.
EXPECTED = {
    "borgctl cells": "dev",
    "borgctl tasks hello": "running",
    "dig @127.0.0.1 -p 5353 hello.demo.dev.borg.internal SRV": "status: NOERROR",
    "borgctl why giant": "500",
    "borgctl plan hello-4.jsonnet": "1",
    "borgctl quota list": "production",
}


def test_every_command_of_the_tutorial_succeeds(new: Installation, tmp_path: Path) -> None:
    new.start()
    folder = tutorial.folder_of_a_reader(tmp_path / "reader")
    typed = tutorial.commands()
    assert len(typed) > 25
    assert EXPECTED.keys() <= set(typed)
    for command in typed:
        assert EXPECTED.get(command, "") in tutorial.run(command, folder, new), command
