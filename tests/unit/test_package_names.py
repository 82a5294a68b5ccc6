"""Tests of package names, and of job specs whose packages are pinned to a digest."""

from __future__ import annotations

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.jobs.rollouts import restart_rule
from scheduling.jobs.rollouts.restart_rule import SpecChange
from scheduling.spec import job_spec, package_pins, parser
from scheduling.spec.package_names import LATEST, Reference, parse

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


@pytest.mark.parametrize(
    "text, reference, tag",
    [
        ("web", Reference("web"), LATEST),
        ("web@v1.2_x", Reference("web", "v1.2_x"), "v1.2_x"),
        (f"web@{DIGEST}", Reference("web", "", DIGEST), ""),
        (f"w3b-a.b_c@v2@{DIGEST}", Reference("w3b-a.b_c", "v2", DIGEST), ""),
    ],
)
def test_a_reference_is_read_and_written_the_same(text: str, reference: Reference, tag: str) -> None:
    assert parse(text) == reference
    assert str(reference) == text
    assert reference.wanted_tag == tag


@pytest.mark.parametrize(
    "text, told",
    [
        ("", "not the name"),
        ("Web", "lower-case"),
        ("a/b", "lower-case"),
        ("..", "lower-case"),
        (".web", "lower-case"),
        ("web@", "is not a package"),
        ("web@a b", "is not a package"),
        ("web@v1@v2", "is not a package"),
        ("web@sha256:12", "64 hexadecimal"),
        (f"web@{DIGEST}@v1", "is not a package"),
        (f"web@{DIGEST}0", "64 hexa"),
        (f"web@v1@v2@{DIGEST}", "is not a package"),
        ("w" * 64, "at most 63"),
        (f"web@{DIGEST.upper()}", "is not a package"),
    ],
)
def test_what_names_no_package_says_the_cure(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(text)


def a_spec(*packages: str, **overrides: list[str]) -> job_spec.JobSpecification:
    return parser.parse(
        {
            "name": "web",
            "tasks": 9,
            "task": {"command": ["x"], "packages": list(packages)},
            "overrides": {key.removeprefix("t"): {"packages": value} for key, value in overrides.items()},
        }
    )


def test_every_mention_is_found_and_pinned_and_reads_back_equal() -> None:
    given = a_spec("web", "lib@v1", t3=["web@v2"])
    assert {str(reference) for reference in package_pins.mentions(given).values()} == {"web", "lib@v1", "web@v2"}
    done = package_pins.pinned(given, {"web": DIGEST, "lib@v1": DIGEST, "web@v2": OTHER})
    assert done.base.packages == (f"web@{DIGEST}", f"lib@v1@{DIGEST}")
    assert done.task(3).packages == (f"web@v2@{OTHER}",)
    assert parser.load(done.to_json()) == done
    assert done.digest() != given.digest()
    again = {text: parse(text).digest for text in package_pins.mentions(done)}
    assert package_pins.pinned(done, again) is done, "what is pinned stays as it is"


def test_a_mention_is_reported_by_its_place() -> None:
    with pytest.raises(Rejected) as refused:
        package_pins.mentions(a_spec("web", "No", t3=["web@v1", f"web@{DIGEST}"]))
    assert set(refused.value.fields) == {"task.packages[1]", "overrides.3.packages[1]"}
    assert package_pins.path_of(a_spec("web", t3=["lib"]), "lib") == "overrides.3.packages[0]"


@pytest.mark.parametrize(
    "before, after, change",
    [
        ([f"web@v1@{DIGEST}"], [f"web@v2@{DIGEST}"], SpecChange.IN_PLACE),
        ([f"web@v1@{DIGEST}"], [f"web@v1@{OTHER}"], SpecChange.RESTART),
        ([f"web@v1@{DIGEST}"], [f"lib@v1@{DIGEST}"], SpecChange.RESTART),
        ([f"web@{DIGEST}", f"lib@{OTHER}"], [f"lib@{OTHER}", f"web@{DIGEST}"], SpecChange.RESTART),
        ([f"web@{DIGEST}"], [], SpecChange.RESTART),
        (["web"], ["web@v1"], SpecChange.RESTART),
    ],
)
def test_tasks_start_again_when_their_content_changes(before: list[str], after: list[str], change: SpecChange) -> None:
    assert restart_rule.change(a_spec(*before), a_spec(*after), 0) is change
