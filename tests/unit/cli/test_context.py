"""Tests of names of jobs and tasks on the command line, with defaults from the profile."""

from __future__ import annotations

import pytest

from portal.cli.context import Context, JobReference, split_index
from portal.cli.failure import CommandFailed
from portal.cli.profiles import Profile


def context(cell: str = "cc", tenant: str = "ubar") -> Context:
    ours = Context()
    ours.__dict__["profile"] = Profile("p", "http://p", "t", cell, tenant)
    return ours


@pytest.mark.parametrize(
    "name, job",
    [
        ("web", JobReference("cc", "ubar", "web")),
        ("other/web", JobReference("cc", "other", "web")),
        ("dd/other/web", JobReference("dd", "other", "web")),
        ("/dd/other/web/", JobReference("dd", "other", "web")),
    ],
)
def test_the_profile_fills_in_what_is_left_out(name: str, job: JobReference) -> None:
    assert context().job(name) == job


def test_a_full_name_needs_nothing_of_the_profile() -> None:
    assert str(context("", "").job("dd/other/web")) == "dd/other/web"


@pytest.mark.parametrize(
    "name, code, told",
    [
        ("", "bad-usage", "is not a job name"),
        ("a//b", "bad-usage", "is not a job name"),
        ("a/b/c/d", "bad-usage", "is not a job name"),
        ("We_b", "bad-usage", "'We_b' is not a valid job name: .*lower-case"),
        ("..", "bad-usage", "is not a valid job name"),
        ("../web", "bad-usage", "'..' is not a valid tenant name"),
        ("C/t/web", "bad-usage", "'C' is not a valid cell name"),
        ("web\x1b[2J", "bad-usage", "is not a valid job name"),
        ("\udcff", "bad-usage", "is not a valid job name"),
        ("w" * 64, "bad-usage", "63 characters"),
    ],
)
def test_input_that_is_not_a_name_is_bad_usage(name: str, code: str, told: str) -> None:
    with pytest.raises(CommandFailed, match=told) as caught:
        context().job(name)
    assert (caught.value.code, caught.value.status) == (code, 2)


def test_without_a_cell_or_tenant_anywhere_one_is_asked_for() -> None:
    for ours, code in ((context(cell=""), "no-cell"), (context(tenant=""), "no-tenant")):
        with pytest.raises(CommandFailed) as caught:
            ours.job("web")
        assert (caught.value.code, caught.value.status) == (code, 2)


@pytest.mark.parametrize(
    "name, split",
    [
        ("web/3", ("web", 3)),
        ("c/t/web/0", ("c/t/web", 0)),
        ("web", ("web", None)),
        ("t/web", ("t/web", None)),
        ("3", ("3", None)),
        ("/3", ("/3", None)),
        ("web/²", ("web/²", None)),
        ("web/-1", ("web/-1", None)),
        ("web/9999999999", ("web/9999999999", None)),
    ],
)
def test_a_number_behind_a_slash_is_a_task(name: str, split: tuple[str, int | None]) -> None:
    assert split_index(name) == split


def test_a_task_has_a_number() -> None:
    assert context().task("web/3") == (JobReference("cc", "ubar", "web"), 3)
    with pytest.raises(CommandFailed, match="'web' is not a task: write job/0"):
        context().task("web")
