"""Tests of how `borgctl resolve` reads names of jobs, tasks, services and machines."""

from __future__ import annotations

import pytest

from portal.cli.failure import CommandFailed
from portal.cli.resolve import _path
from tests.unit.cli.test_context import context


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("web", "/bns/cc/ubar/web/"),
        ("other/web/7", "/bns/cc/other/web/7/"),
        ("/bns/dd/other/web", "/bns/dd/other/web/"),
        ("service/front", "/bns/cc/ubar/service/front/"),
        ("other/service/front", "/bns/cc/other/service/front/"),
        ("dd/other/service/front", "/bns/dd/other/service/front/"),
        ("/bns/dd/other/service/front/", "/bns/dd/other/service/front/"),
        ("/bns/dd/service/front", "/bns/dd/service/front/"),  # a job of a tenant of that name
        ("machine/m1", "/bns/cc/machine/m1/"),
        ("machine/7", "/bns/cc/machine/7/"),
        ("dd/machine/m1", "/bns/dd/machine/m1/"),
        ("/bns/dd/machine/m1", "/bns/dd/machine/m1/"),
    ],
)
def test_the_profile_fills_in_what_is_left_out(name: str, path: str) -> None:
    assert _path(context(), name) == path


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("machine/..", "machine"),
        ("service/F", "service"),
        ("../service/front", "tenant"),
        ("a/b/c/d/e", "job"),
        ("/bns/", "job"),
        ("/bns/cc/ubar", "job"),
        ("/bns/machine/m1", "job"),
        ("/bns/cc/ubar/7", "job"),
    ],
)
def test_input_that_is_not_a_name_is_bad_usage(name: str, field: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        _path(context(), name)
    assert (failed.value.status, list(failed.value.fields)) == (2, [field])
