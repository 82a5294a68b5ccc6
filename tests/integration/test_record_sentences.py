"""Tests of records of changes: each kind that the code can append is shown as a sentence, with money and units."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from django.utils import timezone

from portal.sigma.team.record_sentences import SENTENCES, sentence_of
from quota.models import Record

ROOT = Path(__file__).resolve().parents[2]
_KIND = r"[a-z_-]+(\.[a-z_-]+)+"
# The functions that append a record, with the position of the kind in their arguments.
_APPENDERS = {"append": 0, "news": 1, "_note": 1, "_announce": 1}


def kinds_appended() -> set[str]:
    """Return the kinds of records in calls such as `entry.append("member.set", …)` and `news(entry, "x.y", …)`."""
    tracked = subprocess.run(
        ["git", "ls-files", "quota/*.py", "scheduling/*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    found: set[str] = set()
    for name in tracked:
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            place = _APPENDERS.get(called)
            given = node.args[place : place + 1] if place is not None else []
            given += [one.value for one in node.keywords if one.arg == "kind" and called == "take_back"]
            for one in given:
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and re.fullmatch(_KIND, one.value):
                    found.add(one.value)
    return found


def test_every_kind_has_a_sentence() -> None:
    kinds = kinds_appended()
    assert len(kinds) > 40
    assert sorted(kinds - SENTENCES.keys()) == []


def reports(kind: str, **data: object) -> str:
    return sentence_of(Record(kind=kind, data=data))


def test_amounts_are_money_and_quantities_have_units() -> None:
    text = reports(
        "order.approved",
        order=7,
        by="rule 100",
        cell="cc",
        band="production",
        price=1_234_500_000,
        amounts={"cpu": 1_709_580_000, "ram": 2**32, "disk": 0},
    )
    assert text == (
        "rule 100 approved order 7: 1,709,580 cores, 4 GiB of RAM, production in cell cc for 1,234.50 credits."
    )
    assert reports("money.charge", amount=12_500_000, text="order 7") == "Charge of 12.50 credits: order 7"


def test_times_are_in_the_zone_of_the_reader() -> None:
    with timezone.override("Asia/Tokyo"):
        assert reports("order.reminder", order=7, ends_at="2027-01-31T00:00:00+00:00") == (
            "Order 7 ends on 2027-01-31 09:00 JST."
        )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "Thing done twice."),
        (
            {"cell": "cc", "price": 1_000_000, "extra": None, "amounts": {"cpu": 1000}},
            "Thing done twice: cell cc, price 1.00 credits, amounts 1 core",
        ),
    ],
)
def test_an_unknown_kind_is_readable_all_the_same(data: dict[str, object], text: str) -> None:
    assert reports("thing.done-twice", **data) == text


@pytest.mark.parametrize("kind", sorted(SENTENCES))
def test_a_record_of_an_older_version_lacks_no_value(kind: str) -> None:
    assert "%(" not in reports(kind)
