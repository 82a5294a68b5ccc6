"""Test that the commands of the entries in `docs/guides/alarms.md` succeed on a running installation."""

from __future__ import annotations

import pytest

from tests.acceptance import runbook
from tests.acceptance.installation import Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


def test_every_command_of_an_alarm_shows_what_its_entry_says(shared: Installation) -> None:
    operator = runbook.Operator(shared)
    # Several entries have the same command. Each is run once.
    found = {each.line: each for text in runbook.entries().values() for each in runbook.commands(text)}
    assert len(found) > 20
    for command in found.values():
        output = operator.types(command.line)
        assert command.shows(output), f"`{command.line}` printed:\n{output}"
