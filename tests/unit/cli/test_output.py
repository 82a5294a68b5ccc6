"""Tests of what borgctl prints: lines that programs can read, without control characters for terminals."""

from __future__ import annotations

import pytest

from portal.cli import output
from portal.cli.failure import CommandFailed


def test_a_row_is_one_line_however_long_and_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("A", "B", "C"), [("x" * 3000, None, 1), ("y", "z", "")], empty="none")
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["A", "B", "C"]
    assert first.split() == ["x" * 3000, "1"]
    assert second.split() == ["y", "z"]
    assert not head.endswith(" ")
    assert first.index("1") == head.index("C")


def test_at_a_terminal_sentences_are_cut_so_that_rows_fit_and_names_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    name, reason = "j" * 40, " ".join(["no machine has enough RAM"] * 4)
    output.table(("JOB", "SINCE", "DETAIL"), [(name, "2027-01-31 08:00", reason)], empty="")
    _, row = capsys.readouterr().out.splitlines()
    assert row == f"{name}  2027-01-31 08:00  {reason[:29]}…"  # a sentence keeps 30 letters, though 80 are too few
    output.table(("JOB", "DETAIL"), [("web", reason)], empty="")
    assert len(capsys.readouterr().out.splitlines()[1]) == 80


def test_an_empty_table_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("A",), [], empty="No jobs.")
    assert capsys.readouterr().out == "No jobs.\n"


def test_what_strangers_wrote_can_not_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("a\x1b]0;x\x07b\rc :on: [bold]d")
    output.table(("A",), [("two\nlines",)], empty="")
    output.complain(CommandFailed("x", "no\x1b[2J", fields={"f": "w\x00y"}), json_wanted=False)
    told = capsys.readouterr()
    assert told.out == "a ]0;x b c :on: [bold]d\nA\ntwo lines\n"
    assert told.err == "borgctl: no [2J\n  f: w y\n"


def test_a_failure_is_a_sentence_and_with_json_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    failed = CommandFailed("invalid", "tasks: -1 tasks", fields={"tasks": "-1 tasks", "name": "no label"})
    output.complain(failed, json_wanted=True)
    told = capsys.readouterr()
    assert told.err == "borgctl: tasks: -1 tasks\n  name: no label\n"
    assert '"code": "invalid"' in told.out


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("cpu", 2500, "2.5"),
        ("ram", 2**30, "1 GiB"),
        ("ram", 1536 * 2**20, "1.5 GiB"),
        ("disk", 100, "100 B"),
        ("disk", 2048, "2 KiB"),
        ("ports", 3, "3"),
    ],
)
def test_quantities_are_shown_in_units_of_people(name: str, value: int, text: str) -> None:
    assert output.quantity(name, value) == text


def test_numbers_and_times() -> None:
    assert (output.number(1, "task"), output.number(0, "task")) == ("1 task", "0 tasks")
    assert (output.when(None), output.when("2026-01-15T12:00:00Z")[:8]) == ("", "2026-01-")
