"""Tests of how commands and environments of tasks are built, without processes."""

from __future__ import annotations

import pytest

from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.base.task_command import command, environment, expand, variables, working_directory
from borglet.variables import defined
from tests.real.runtimes.machine import a_task


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("$(port.http)", "20001"),
        ("--name=$(cell)/$(job)/$(index)", "--name=aa/web/0"),
        ("$(name)", "aa/ada/web/0"),
        ("$$(port.http)", "$(port.http)"),
        ("$$ $HOME $((1+2))", "$$ $HOME $((1+2))"),
        ("", ""),
    ],
)
def test_variables_are_filled_in(given: str, wanted: str) -> None:
    assert command(a_task("echo", given)) == ["echo", wanted]


@pytest.mark.parametrize("name", ["", " ", "port.", "PORT.http", "hostname", "port.http "])
def test_an_unknown_variable_is_named_with_what_is_known(name: str) -> None:
    with pytest.raises(StartFailed) as failed:
        expand(f"a $({name}) b", {"cell": "aa"}, where="command[3]")
    assert str(failed.value) == (
        f"command[3]: unknown variable $({name}). Use one of cell, declare the port if it names a"
        " port, or write $$( for a literal $(."
    )


@pytest.mark.parametrize("packages", ["", "/packages"])
def test_a_task_has_the_variables_that_job_files_are_checked_against(packages: str) -> None:
    task = a_task("x", ports={"http": 5, "admin": 6})
    assert sorted(variables(task, packages=packages)) == defined(task.ports, packages=bool(packages))


def test_what_a_value_expands_to_is_not_expanded_again() -> None:
    assert expand("$(a)", {"a": "$(b)"}, where="x") == "$(b)"


def test_the_tasks_values_beat_the_base_and_borgs_beat_the_tasks() -> None:
    task = a_task("x", env={"LANG": "de_DE", "BORG_TASK": "forged"}, ports={"http-alt": 5})
    found = environment(task, run=2, home="/w", tmp="/t")
    assert found["LANG"] == "de_DE"
    assert found["BORG_TASK"] == "aa/ada/web/0"
    assert found["BORG_PORT_HTTP_ALT"] == "5"
    assert found["BORG_LIMIT_RAM"] == str(256 * 2**20)
    assert (found["HOME"], found["TMPDIR"], found["BORG_TENANT"], found["BORG_RUN"]) == ("/w", "/t", "ada", "2")


@pytest.mark.parametrize("name", ["", "A=B", "1A", "A B", "A\n"])
def test_a_bad_name_of_a_variable_is_refused(name: str) -> None:
    with pytest.raises(StartFailed, match="is not the name of an environment variable"):
        environment(a_task("x", env={name: ""}), run=1, home="", tmp="")


def test_nul_characters_are_refused_by_field() -> None:
    with pytest.raises(StartFailed, match=r"command\[1\]: it contains a NUL"):
        command(a_task("echo", "a\0b"))
    with pytest.raises(StartFailed, match=r"env\.A: it contains a NUL"):
        environment(a_task("x", env={"A": "\0"}), run=1, home="", tmp="")


def test_working_directories() -> None:
    assert working_directory(a_task("x"), "/w") == "/w"
    assert working_directory(a_task("x", working_dir="sub"), "/w") == "/w/sub"
    assert working_directory(a_task("x", working_dir="/srv"), "/w") == "/srv"
