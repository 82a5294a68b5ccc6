"""Tests of job specs that are rebuilt from the requirements of tasks in a checkpoint."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from quota.vocabulary.resources import SIZE
from scheduling.core.vocabulary.requirement import Requirement, task_id
from scheduling.history.checkpoints.tables import schema
from scheduling.history.studies.specs import StoredSpec, specs_completed, specs_in
from scheduling.spec import parser

EXTRA = ("tpu",)
DIGESTS = [f"sha256:{number:064x}" for number in (1, 2)]
FILES: list[dict[str, Any]] = [
    {"task": {"command": ["serve"], "ports": ["http", "admin"], "limit": {"cpu": "150m", "ram": "77Mi", "tpu": 2}}},
    {
        "appclass": "latency-sensitive",
        "priority": "production",
        "spread": {"max_per_machine": 1, "max_per_rack": 2},
        "task": {"command": ["serve"], "whole_cores": True, "limit": {"cpu": 2, "accelerators": "500m"}},
    },
    {
        "task": {
            "command": ["serve"],
            "packages": [f"tool@{DIGESTS[0]}", f"data@v2@{DIGESTS[1]}"],
            "root": "packages",
            "constraints": [
                {"attribute": "arch", "relation": "=", "value": "arm"},
                {"attribute": "flash", "relation": "present", "hard": False, "weight": 2.0},
            ],
        },
        "overrides": {"1": {"limit": {"cpu": 1}}, "4-5": {"limit": {"ram": "1Gi"}, "constraints": []}},
    },
    {"kind": "AllocSet", "task": {"limit": {"cpu": 4, "ram": "4Gi"}}},
]


def tables_of(file: dict[str, Any]) -> dict[str, pa.Table]:
    """Return the sections of a checkpoint with one job of six tasks. Task 3 does not exist."""
    packages = {digest: {"size_bytes": 7, "format": "tar"} for digest in DIGESTS}
    spec = parser.with_sizes(parser.parse(file, limits=parser.CellLimits(extra=EXTRA)), packages)
    indexes = [0, 1, 2, 4, 5]
    requirements = sorted({spec.requirement(index) for index in indexes})
    job = dict.fromkeys(schema("jobs").names) | {
        "job_id": 5,
        "tenant": "ubar",
        "name": "web",
        "job_kind": spec.kind,
        "priority": spec.priority,
        "latency_sensitive": spec.latency_sensitive,
        "spec_version": 2,
        "labels": "{}",
        "alloc_set": 0,
        "gang": False,
        "disruption_budget": 0,
    }
    return {
        "jobs": pa.Table.from_pylist([job], schema=schema("jobs")),
        "updates": pa.Table.from_pylist([], schema=schema("updates")),
        "requirements": pa.table({"requirement": [msgspec.json.encode(one).decode() for one in requirements]}),
        "tasks": pa.table(
            {
                "id": [int(task_id(5, index)) for index in indexes],
                "state": [1] * 5,
                "requirement": pa.array([requirements.index(spec.requirement(i)) for i in indexes], pa.int32()),
                "spec_version": pa.array([1, 1, 1, 1, 2], pa.int32()),
            }
        ),
    }


@pytest.mark.parametrize("file", FILES)
def test_a_made_spec_gives_the_requirements_of_the_tasks(file: dict[str, Any]) -> None:
    tables = tables_of({"name": "web", "tasks": 6, **file})
    made = specs_completed(tables, {}, extra=EXTRA)
    assert made.keys() == {(5, 1), (5, 2)}
    all_of_them = tables["requirements"]["requirement"].to_pylist()
    texts = [all_of_them[number] for number in tables["tasks"]["requirement"].to_pylist()]
    wanted = dict(zip([0, 1, 2, 4, 5], [msgspec.json.decode(text, type=Requirement) for text in texts], strict=True))
    for version, indexes in ((1, [0, 1, 2, 4]), (2, [5])):
        read = parser.load(made[5, version].spec, extra=EXTRA, packages=made[5, version].packages)
        assert read.tasks == 6
        assert [read.requirement(index) for index in indexes] == [wanted[index] for index in indexes]
        assert len(read.base.limit) == SIZE + 1
        assert read.to_json() == made[5, version].spec


def test_known_specs_are_used_if_they_fit() -> None:
    file = parser.parse({"name": "web", "tasks": 6, "task": {"command": ["real"]}}).to_json()
    tables = tables_of(file)
    right, wrong = StoredSpec(file, {}), StoredSpec({**file, "spread": {"max_per_rack": 1}}, {})
    broken = StoredSpec({"name": "web"}, {})
    for known in (wrong, broken):
        found = specs_completed(tables, {(5, 1): right, (5, 2): known}, extra=EXTRA)
        assert found[5, 1] is right
        assert found[5, 2].spec["task"]["command"] == ["(unknown)"]


def test_the_specs_of_a_checkpoint_are_read() -> None:
    table = pa.table({"job_id": [5], "version": [2], "spec": ['{"name": "web"}'], "packages": ["{}"]})
    assert specs_in(table) == {(5, 2): StoredSpec({"name": "web"}, {})}
