"""Tests of the pure parts of cures: candidates from a job file, their order, and the commands that apply them."""

from __future__ import annotations

import datetime as dt
import json
import shlex
from functools import partial
from typing import Any

from quota.vocabulary.bands import DEFAULT_BANDS
from quota.vocabulary.resources import CPU, DISK, RAM
from scheduling.core.vocabulary.reasons import ChangeKind, SuggestedChange
from scheduling.core.vocabulary.requirement import Constraint, Relation
from scheduling.core.vocabulary.trials import PARTS, Lowering, TrialGroup
from scheduling.cures import cure_texts
from scheduling.cures.candidates import lowered_candidate, lowerings, priority_candidates, request_candidates, trial_job
from scheduling.cures.cure_list import Cure, CureKind, ranked, without_dominated
from scheduling.spec import parser
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.merge_patch import merged

FLASH = {"attribute": "flash", "relation": "=", "value": "yes"}
PARSE = partial(parser.parse, limits=parser.CellLimits(bands=DEFAULT_BANDS))


def spec(**changes: Any) -> JobSpecification:
    file = {
        "name": "web",
        "tasks": 4,
        "priority": 200,
        "task": {"command": ["x"], "limit": {"cpu": "4", "ram": "8Gi"}, "constraints": [FLASH]},
        "spread": {"max_per_rack": 1},
    }
    return PARSE(merged(file, changes))


def cure(key: str, **changes: Any) -> Cure:
    return Cure(
        **{"key": key, "kind": CureKind.REQUEST, "cell": "cc", "change": key, "tasks": 4, "places": 4, **changes}
    )


def test_each_suggested_change_becomes_a_patch_of_the_job_file() -> None:
    flash = Constraint("flash", Relation.EQUAL, "yes")
    changes = [
        SuggestedChange("cpu", 2500, 3),
        SuggestedChange("flash", "no", 2, ChangeKind.RELAX, flash, Constraint("flash", Relation.EQUAL, "no")),
        SuggestedChange("max-per-rack", 2, 1, ChangeKind.RAISE),
        SuggestedChange("borglet.protocol", "", 1, ChangeKind.DROP, Constraint("borglet.protocol", Relation.AT_LEAST)),
        SuggestedChange("ports", 1, 1),
    ]
    assert [one.patch for one in request_candidates(spec(), changes, PARSE)] == [
        {"task": {"limit": {"cpu": "2500m"}}},
        {"task": {"constraints": [{**FLASH, "value": "no", "hard": True, "weight": 1.0}]}},
        {"spread": {"max_per_rack": 2}},
        {"task": {"constraints": []}},  # tried without a suggestion too
    ], "a job file cannot contain the last two"


def test_a_combined_change_is_one_patch() -> None:
    flash = Constraint("flash", Relation.EQUAL, "yes")
    parts = (SuggestedChange("flash", "", 0, ChangeKind.DROP, flash), SuggestedChange("ram", 2**30, 0))
    combined = SuggestedChange("", "", 1, ChangeKind.COMBINED, parts=parts)
    (first, *_) = request_candidates(spec(), [combined], PARSE)
    assert first.patch == {"task": {"constraints": [], "limit": {"ram": "1Gi"}}}


def test_each_other_band_is_a_candidate_and_what_the_job_had_before() -> None:
    assert [one.patch["priority"] for one in priority_candidates(spec(), DEFAULT_BANDS, PARSE)] == [0, 360, 119, 99]
    demoted = priority_candidates(spec(priority=0), DEFAULT_BANDS, PARSE, before=200)
    assert [one.patch["priority"] for one in demoted] == [200, 360, 120, 100]


def test_only_the_pending_tasks_are_tried_with_their_overrides() -> None:
    own = spec(overrides={"2-3": {"limit": {"cpu": "1"}}})
    job = trial_job(own, [0, 3], job_id=7)
    assert [(group.requirement.limit[CPU], group.tasks) for group in job.groups] == [(4000, 1), (1000, 1)]
    assert (job.job_id, job.priority) == (7, 200)
    assert trial_job(own, [2, 3], job_id=7).groups == (TrialGroup(own.requirement(2), 2),)


def test_a_lowering_is_offered_only_as_it_was_tried() -> None:
    plain = spec()
    job = trial_job(plain, [0, 1], job_id=1)
    assert [one.resources for one in lowerings(job)] == [(CPU,), (RAM,), (DISK,), (CPU, RAM, DISK)]
    found = lowered_candidate(plain, job, Lowering("lower-cpu", (CPU,)), PARTS // 2, [0, 1], PARSE)
    assert found is not None
    assert found.patch == {"task": {"limit": {"cpu": "2"}}}
    own = spec(overrides={"0": {"limit": {"cpu": "8"}}})
    job = trial_job(own, [0, 1], job_id=1)
    assert lowered_candidate(own, job, Lowering("lower-cpu", (CPU,)), PARTS // 4, [0, 1], PARSE) is None, (
        "the override would keep its limit"
    )


def test_extra_cost_comes_first_then_the_start_and_the_smallest_change() -> None:
    soon, later = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    cures = [
        cure("dear", price_difference=5, starts_at=soon),
        cure("wait", price_difference=0, places=0),
        cure("booked", price_difference=0, places=0, starts_at=later),
        cure("large", price_difference=-9, starts_at=soon, size=0.5),
        cure("small", price_difference=-1, starts_at=soon, size=0.1),
        cure("part", price_difference=-1, starts_at=soon, places=3, size=0.05),
        cure("unknown", starts_at=soon),
    ]
    assert [one.key for one in ranked(cures)] == ["small", "large", "part", "booked", "wait", "dear", "unknown"]


def test_changes_that_give_up_more_for_nothing_are_left_out() -> None:
    cures = [
        cure("some", subject=("cpu",), size=0.2, places=2),
        cure("more", subject=("cpu",), size=0.4),
        cure("most", subject=("cpu",), size=0.6),
        cure("both", subject=("cpu", "ram"), size=0.1),
        cure("ram", subject=("ram",), size=0.3, places=1),
        cure("evicting", subject=("disk",), size=0.1, preempts=4),
        cure("gentle", subject=("disk",), size=0.2),
    ]
    assert [one.key for one in without_dominated(cures)] == ["evicting", "gentle", "some", "ram", "more"]


def test_commands_and_sentences() -> None:
    patch = {"task": {"constraints": [{**FLASH, "value": "it's"}]}}
    words = shlex.split(cure_texts.patch_command("cc/ubar/web", patch, "abc-1"))
    assert words[:3] == ["borgctl", "patch", "cc/ubar/web"]
    assert json.loads(words[3]) == patch
    assert words[4:] == ["--if-revision", "abc-1"]
    lower = {"task": {"limit": {"cpu": "2500m"}}, "spread": {"max_per_rack": 2}}
    assert cure_texts.request_change(spec(), PARSE(merged(spec().to_json(), lower)), lower) == (
        "Lower cpu per task from 4 to 2500m, and allow 2 tasks per rack."
    )
    one = cure("x", places=1, preempts=2, restarts=1)
    assert cure_texts.effect_of(one) == (
        "Places 1 of 4 tasks at once, preempts 2 tasks of lower priority, restarts 1 running task."
    )
    assert "uid=u" in cure_texts.patch_path("/p/", "u", {"x": "y" * 5_000})
    assert "patch" not in cure_texts.patch_path("/p/", "u", {"x": "y" * 5_000})
