"""Tests of erasing identities from rows: a person or tenant is replaced, other things of that name are not."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from scheduling.history.erasure.identities import Identity, IdentityKind

ANN = Identity(IdentityKind.PERSON, "ann", "erased-1")
ADS = Identity(IdentityKind.TENANT, "ads", "erased-2")


@pytest.mark.parametrize(
    ("identity", "field", "before", "after"),
    [
        (ANN, "actor", "ann", "erased-1"),
        (ANN, "actor", "joann", "joann"),
        (ANN, "user", "ann", "ann"),
        (ANN, "reason", "ask ann, not ann-marie or Hannah", "ask erased-1, not ann-marie or Hannah"),
        (ADS, "user", "ads", "erased-2"),
        (ADS, "tenant", "ads", "erased-2"),
        (ADS, "name", "ads", "ads"),
        (ADS, "actor", "ads", "ads"),
        (ADS, "actor", "task:cc/ads/web/3", "task:cc/erased-2/web/3"),
        (ADS, "actor", "deployer@ads", "deployer@erased-2"),
        (ADS, "alloc_set", "ads/box", "erased-2/box"),
        (ADS, "alloc_set", "loads/box", "loads/box"),
        (ADS, "detail", "tenant ads has 3 jobs (ads.cc.borg)", "tenant erased-2 has 3 jobs (erased-2.cc.borg)"),
        (Identity(IdentityKind.PERSON, "a.b+c", "x"), "detail", "a.b+c aXb+c", "x aXb+c"),
        (Identity(IdentityKind.PERSON, "ann", r"\1"), "detail", "by ann", r"by \1"),
    ],
)
def test_only_the_identity_is_replaced(identity: Identity, field: str, before: str, after: str) -> None:
    assert identity.value(field, before) == after


def test_fields_of_json_are_replaced_at_any_depth_and_the_rest_stays() -> None:
    data = {"tenant": "ads", "name": "ads", "of": [{"reason": "for ads", "n": [1, 2.5, None, True]}], "ü": "ads/x"}
    assert json.loads(ADS.data(json.dumps(data), by=False)) == {
        "tenant": "erased-2",
        "name": "ads",
        "of": [{"reason": "for erased-2", "n": [1, 2.5, None, True]}],
        "ü": "erased-2/x",
    }
    same = '{"tenant":  "other"}'
    assert ADS.data(same, by=False) is same


def test_rows_keep_their_order_and_their_other_values() -> None:
    rows = pa.table(
        {
            "actor": ["ann", "bob", "ann", None],
            "kind": ["shell.opened", "shell.opened", "task.gone", "task.gone"],
            "data": ['{"peer": "10.0.0.1"}', '{"peer": "10.0.0.2"}', '{"reason": "for bob"}', '{"detail": "of ann"}'],
            "n": [1, 2, 3, None],
        }
    )
    found, touched = ANN.erased(rows)
    assert touched == 3
    assert found.schema == rows.schema
    assert found.to_pydict() == {
        "actor": ["erased-1", "bob", "erased-1", None],
        "kind": rows["kind"].to_pylist(),
        "n": [1, 2, 3, None],
        "data": ['{"peer":""}', '{"peer": "10.0.0.2"}', '{"reason": "for bob"}', '{"detail":"of erased-1"}'],
    }
    assert ANN.erased(found) == (found, 0)
    assert ANN.erased(rows.slice(0, 0))[1] == 0


def test_a_name_that_json_escapes_is_found() -> None:
    name = 'Ann "the\\boss"'
    identity = Identity(IdentityKind.PERSON, name, "erased-3")
    rows = pa.table({"data": [json.dumps({"reason": f"by {name}"}), "not {json"]})
    found, touched = identity.erased(rows)
    assert (touched, json.loads(found["data"][0].as_py())) == (1, {"reason": "by erased-3"})
