"""Tests of `narrowed`: a program with one command answers as the whole program does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from portal.cli.main import app, narrowed


def paths(group: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the words of each command and group in `group`."""
    for name, command in getattr(group, "commands", {}).items():
        yield (*above, name)
        yield from paths(command, (*above, name))


def test_each_command_alone_has_the_help_of_the_whole_program(capsys: pytest.CaptureFixture[str]) -> None:
    whole = get_command(app)
    every = list(paths(whole))
    assert len(every) > 120

    def help_of(program: Any, path: tuple[str, ...]) -> str:
        program.main([*path, "--help"], prog_name="borgctl", standalone_mode=False)
        return capsys.readouterr().out

    for path in every:
        alone = get_command(narrowed(app, [*path, "--help"]))
        assert len(list(paths(alone))) < 40
        assert help_of(alone, path) == help_of(whole, path) != ""


@pytest.mark.parametrize("words", [[], ["--help"], ["statu"], ["Status"]])
def test_words_that_name_no_command_keep_the_whole_program(words: list[str]) -> None:
    assert narrowed(app, words) is app


def test_a_group_keeps_all_its_commands_if_the_next_word_names_none() -> None:
    whole = [path for path in paths(get_command(app)) if path[0] == "quota"]
    assert list(paths(get_command(narrowed(app, ["quota", "ordr"])))) == whole
    assert list(paths(get_command(narrowed(app, ["quota", "order"])))) == [("quota",), ("quota", "order")]
