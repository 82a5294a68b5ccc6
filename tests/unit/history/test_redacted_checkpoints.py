"""Tests of redacted checkpoints: they contain no names, and a scheduling pass decides the same as before."""

from __future__ import annotations

import io

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.history.checkpoints.file import Header, write
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.redact import redact
from scheduling.history.checkpoints.tables import Tables, state_of, tables_of
from tests.builders import World, must

HEADER = Header(cell="acme-cell", revision=1, taken_at=5.0, history="acme-history")
# Every name that the world below has.
NAMES = ("acme", "server-", "rack-", "power-", "gold", "sha256:secret", "t01")


def a_world() -> World:
    world = World()
    for number in range(6):
        tier = "acme-gold" if number < 3 else "acme-tin"
        facts = {"acme_tier": tier, "kernel": str(number), "runtime": "oci"}
        world.machine(f"server-{number}", rack=f"rack-{number % 3}", power=f"power-{number % 2}", **facts)
    world.has("server-4", "sha256:secret")
    world.job("acme-a", tasks=3, constraints=(must("acme_tier", "=", "acme-gold"), must("kernel", ">=", "1")))
    world.job("acme-b", tasks=2, constraints=(must("hostname", "!=", "server-5"), must("runtime", "=", "oci")))
    world.job("acme-c", tasks=1, packages=(("sha256:secret", 30),))
    return world


def saved(world: World) -> Tables:
    state = RecordedState()
    state.apply_all((event, revision, at) for revision, (event, at) in enumerate(world.journal, start=1))
    return tables_of(state)


def plan(state: CellState) -> Plan:
    return schedule_pass(state, Policy(), now=10.0, rng=np.random.default_rng(0))


def test_no_name_is_left() -> None:
    header, tables = redact(HEADER, saved(a_world()))
    file = io.BytesIO()
    write(file, header, tables)
    text = str(header) + "".join(str(table.to_pylist()) for table in tables.values())
    assert [name for name in NAMES if name in text] == []
    assert header.redacted
    original = str(saved(a_world())["machines"].to_pylist()) + str(saved(a_world())["jobs"].to_pylist())
    assert "acme" in original
    assert "server-" in original


def test_a_pass_decides_the_same() -> None:
    tables = saved(a_world())
    original = plan(state_of(tables, extra_resources=(), revision=1))
    _, changed = redact(HEADER, tables)
    redacted = plan(state_of(changed, extra_resources=(), revision=1))
    assert len(original.assignments) == 6
    assert redacted.assignments == original.assignments


def test_two_bundles_have_different_hashes() -> None:
    (one, _), (other, _) = redact(HEADER, saved(a_world())), redact(HEADER, saved(a_world()))
    assert one.cell != other.cell
