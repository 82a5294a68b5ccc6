"""Tests of formatting numbers for people: with separators and units, and never in scientific notation."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.cli import output
from quota.vocabulary.resources import NAMES, describe, format_number

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (57, "57"),
        (0.25, "0.25"),
        (1.5, "1.5"),
        (1709580, "1,709,580"),
        (3e6, "3,000,000"),
        (1709580.4, "1,709,580"),
        (123.456, "123.5"),
        (0.0004, "0.0004"),
        (1e-9, "0"),
        (-2.5, "-2.5"),
        (100.0, "100"),
        (2**63, "9,223,372,036,854,775,808"),
    ],
)
def test_a_number_is_written_for_people(value: float, text: str) -> None:
    assert format_number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_no_number_is_in_scientific_notation(value: float) -> None:
    assert re.fullmatch(r"-?[\d,]+(\.\d+)?", format_number(value))


def test_large_quantities_have_separators_and_units() -> None:
    cpu, ram = NAMES.index("cpu"), NAMES.index("ram")
    assert describe(cpu, 1_709_580_000) == "1,709,580 cores"
    assert describe(cpu, 1000) == "1 core"
    assert describe(cpu, 250) == "0.25 cores"
    assert describe(ram, 3_000_000 * 2**50) == "3,000,000 PiB"
    assert output.quantity("cpu", 1_709_580_000) == "1,709,580"


def test_no_product_code_formats_quantities_with_g() -> None:
    """Search the code for formats such as `{value / 1000:g}`, which writes 1.70958e+06. There must be none."""
    found = subprocess.run(
        ["git", "grep", "-nE", r"/ (10|1000|size)(:\.?[0-9]*g|:g)\}", "--", "portal", "quota", "scheduling", "naming"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in found.stdout.splitlines() if "curve_lines" not in line] == []
