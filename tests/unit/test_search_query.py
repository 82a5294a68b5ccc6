"""Tests of the search: how its text is read, and in which order results are shown."""

from __future__ import annotations

import pytest

from portal.search.query import LONGEST, Query, Result, ResultGroup, arranged, parse


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Query("")),
        (" Web ", Query("web", job="web")),
        ("ubar/web", Query("ubar/web", job="web", tenant="ubar")),
        ("ubar/web/3", Query("ubar/web/3", job="web", tenant="ubar", index=3)),
        ("web/3", Query("web/3", job="web", index=3)),
        ("cc/ubar/web/3", Query("cc/ubar/web/3", job="web", tenant="ubar", cell="cc", index=3)),
        ("#17", Query("#17", job="#17", order=17)),
        ("17", Query("17", job="17", order=17)),
        ("10.0.0.7", Query("10.0.0.7", job="10.0.0.7", address="10.0.0.7")),
        ("safety brakes", Query("safety brakes")),
        ("a/b/c/d/e", Query("a/b/c/d/e")),
        ("///", Query("///")),
        ("a\x00b", Query("ab", job="ab")),
    ],
)
def test_each_text_is_a_search(text, wanted) -> None:
    assert parse(text) == wanted


def test_long_texts_and_numbers_are_cut() -> None:
    assert len(parse("x" * 1_000).text) == LONGEST
    assert parse("9" * 50).order is None
    assert parse("web/" + "9" * 50).index is None


def test_what_the_text_names_exactly_comes_first() -> None:
    jobs = ResultGroup("Jobs", [Result("ubar/m1-backup", "", "/a"), Result("ubar/m10", "", "/b")])
    machines = ResultGroup("Machines", [Result("m10", "", "/c", ("cc/m10",)), Result("m1", "", "/d", ("cc/m1",))])
    nothing = ResultGroup("Cells", [])
    assert [group.title for group in arranged("m", [jobs, nothing, machines])] == ["Jobs", "Machines"]
    found = arranged("m1", [jobs, machines])
    assert [one.link for group in found for one in group.results] == ["/d", "/c", "/a", "/b"]
    assert arranged("cc/m10", [jobs, machines])[0].results[0].link == "/c"
