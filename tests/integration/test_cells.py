"""Tests of creating cells and changing their settings, by REST and with `borgctl`."""

from __future__ import annotations

import pytest

from scheduling.cells.cells import cell_set
from scheduling.models import Cell, Event
from tests.integration import cli_world, rows, world
from tests.integration.cli_world import Cli

SETTINGS = "/api/v1/cells/cc/settings/"


@pytest.fixture
def cell(db) -> Cell:
    return rows.a_cell()


@pytest.fixture
def sre(cell):
    return world.bearer(world.a_user("sre", sre=True))


def test_an_sre_creates_a_cell(sre) -> None:
    body = {"name": "prod", "cluster": "c1", "site": "zurich", "settings": {"scorer": "best-fit"}}
    answer = sre.post("/api/v1/cells/", body, "application/json")
    assert (answer.status_code, answer.json()["name"], answer.json()["site"]) == (201, "prod", "zurich")
    assert Cell.objects.get(name="prod").settings == {"scorer": "best-fit"}
    assert sre.get("/api/v1/cells/prod/settings/").json()["in_force"]["scorer"] == "best-fit"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"name": "Prod"}, 422, "name"),
        ({"name": "ns"}, 422, "name"),
        ({"name": "cc"}, 409, "name"),
        ({}, 422, "name"),
        ({"name": "prod", "settings": {"scorer": "worst"}}, 422, "settings.scorer"),
        ({"name": "prod", "settings": ["scorer"]}, 422, "settings"),
    ],
)
def test_a_wrong_new_cell_is_rejected_and_names_the_field(sre, body, status, field) -> None:
    answer = sre.post("/api/v1/cells/", body, "application/json")
    assert (answer.status_code, list(answer.json()["fields"])) == (status, [field])
    assert [one.name for one in Cell.objects.all()] == ["cc"]


def test_some_settings_are_changed_and_the_others_stay(cell, sre) -> None:
    cell_set(principal=rows.ME, cell=cell, settings={"scorer": "e-pvm", "stop_share": 0.2})
    revision = cell.revision
    answer = sre.patch(SETTINGS, {"settings": {"stop_share": None, "crashed_pair_s": 60}}, "application/json")
    assert answer.json()["stored"] == {"scorer": "e-pvm", "crashed_pair_s": 60}
    assert answer.json()["in_force"]["stop_share"] == 0.3
    assert sre.patch(SETTINGS, {"settings": {"scorer": "e-pvm"}}, "application/json").status_code == 200
    (event,) = Event.objects.filter(cell_id=cell.id, revision__gt=revision)
    assert (event.kind, event.data["settings"]["crashed_pair_s"]) == ("cell.set", 60)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"scorer": "worst"}, "settings.scorer"),
        ({"stop_share": "much"}, "settings.stop_share"),
        ({"no_such": None}, "settings"),
        ({"vanished_most_share": 0.01}, "settings.vanished_most_share"),
        ("scorer=e-pvm", "settings"),
    ],
)
def test_a_wrong_setting_changes_nothing_and_names_the_field(cell, sre, settings, field) -> None:
    body = {"settings": settings if isinstance(settings, str) else {"crashed_pair_s": 60} | settings}
    answer = sre.patch(SETTINGS, body, "application/json")
    assert (answer.status_code, list(answer.json()["fields"])) == (422, [field])
    assert (
        sre.patch(f"{SETTINGS}?dry_run=1", {"settings": {"crashed_pair_s": 60}}, "application/json").status_code == 200
    )
    assert Cell.objects.get().settings == {}


@pytest.mark.django_db(transaction=True)
def test_borgctl_creates_a_cell_and_changes_its_settings(tmp_path, shared_portal) -> None:
    rows.a_cell()
    sre: Cli = cli_world.of(tmp_path, shared_portal, "root", sre=True)
    assert "Cell prod would be created." in sre.out("cell", "create", "prod", "--dry-run")
    said = sre.out("cell", "create", "prod", "--site", "zurich", "--set", "scorer=best-fit", "--set", "stop_share=0.2")
    assert said.startswith("Cell prod is created. Start its master with `systemctl enable --now borg-master@prod`.")
    assert Cell.objects.get(name="prod").settings == {"scorer": "best-fit", "stop_share": 0.2}
    said = sre.out("cell", "set", "--cell", "prod", "scorer=", "batch_in_prod_by_reservation=true")
    assert said.strip() == 'The settings are now scorer="hybrid", batch_in_prod_by_reservation=true.'
    shown = [line.split() for line in sre.out("cell", "settings", "--cell", "prod").splitlines()]
    assert ["stop_share", "0.2"] in shown
    assert ["scorer", '"hybrid"', "default"] in shown
    assert "write NAME=VALUE" in sre.failing("cell", "set", "scorer", status=2)[0]
    assert "scorer must be" in sre.failing("cell", "set", "scorer=worst")[0]
