"""Tests of the hints that borgctl prints below a rejection for lack of quota."""

from __future__ import annotations

import io

import pytest

from portal.cli import output
from portal.cli.failure import CommandFailed

CURE = {
    "price": 12_500_000,
    "price_text": "12.50",
    "from": "2026-12-01",
    "until": "2026-12-30",
    "problem": "",
    "left": {},
    "command": "borgctl quota buy --tenant ubar --cell cc --band production --cpu 2",
}
HOLDERS = [
    {"job": "web", "priority": 200, "tasks": 3, "holds": {"cpu": 1500, "ram": 2**30}},
    {"job": "db", "priority": 200, "tasks": 1, "holds": {"cpu": 200, "ram": 2**34}},
]


def output_of(monkeypatch: pytest.MonkeyPatch, document: dict[str, object]) -> str:
    errors = io.StringIO()
    monkeypatch.setattr("sys.stderr", errors)
    output.complain(CommandFailed("quota-exceeded", "too little", document=document), json_wanted=False)
    return errors.getvalue()


def test_it_names_who_holds_what_is_short_and_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"short": {"cpu": {}}, "holders": HOLDERS, "holding_jobs": 12, "cure": CURE}
    expected = (
        "borgctl: too little\n"
        "  held by web (1.5 cpu), db (0.2 cpu) and 10 more\n"
        "  the missing quota costs 12.50 credits from 2026-12-01 until 2026-12-30:\n"
        "    borgctl quota buy --tenant ubar --cell cc --band production --cpu 2\n"
    )
    assert output_of(monkeypatch, {"figures": figures}) == expected
    assert output_of(monkeypatch, {"outcome": "refused", "problem": {"figures": figures}}) == expected


def test_what_the_cell_has_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    told = output_of(monkeypatch, {"figures": {"cure": CURE | {"left": {"ram": 3 * 2**30, "cpu": 1000}}}})
    assert "the cell has only 3 GiB ram, 1 cpu left to sell until 2026-12-30" in told
    assert "no other time or band has enough: request less" in told
    assert "borgctl" not in told.removeprefix("borgctl:")


def test_what_can_be_bought_instead_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"band": "batch", "from": "2026-12-01", "until": "2026-12-30", "command": "borgctl quota buy --band batch"}
    told = output_of(monkeypatch, {"figures": {"cure": CURE | {"left": {"cpu": 1000}, "instead": [other]}}})
    assert "at batch, for a job with its priority from 2026-12-01 until 2026-12-30:" in told
    assert told.endswith("borgctl quota buy --band batch\n")


def test_an_order_without_a_price_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    told = output_of(monkeypatch, {"figures": {"cure": CURE | {"price": None, "problem": "nothing is sold"}}})
    assert told.endswith("the missing quota cannot be bought: nothing is sold\n")


@pytest.mark.parametrize("document", [{}, {"figures": None}, {"figures": {"holders": []}}, {"problem": "x"}])
def test_other_refusals_have_no_hints(monkeypatch: pytest.MonkeyPatch, document: dict[str, object]) -> None:
    assert output_of(monkeypatch, document) == "borgctl: too little\n"
