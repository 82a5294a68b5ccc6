"""`borgctl apply` with all kinds of files, against a real web process. It applies the example `examples/team`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quota.models import Record
from scheduling.models import AppliedWorkflow, ConfigFile, ConfigVersion, CronJob, Event, Job, JobTemplate, Workflow
from scheduling.workflows import retention
from tests.integration import cli_world, config_rows, rows, workflow_rows, world
from tests.integration.cli_world import Cli
from tests.integration.test_job_templates import apply as template_apply

pytestmark = pytest.mark.django_db(transaction=True)
TEAM = {
    ("ConfigFile", "ubar/greeting"),
    ("Template", "cc/ubar/report"),
    ("Job", "cc/ubar/greeter"),
    ("CronJob", "cc/ubar/cleanup"),
    ("Workflow", "cc/ubar/import-2026"),
}


@pytest.fixture
def ann(tmp_path, shared_portal, cell, tenant) -> Cli:
    rows.grant(tenant, cell, "production")
    cli = cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)
    shutil.copytree("examples/team", cli.folder / "team")
    return cli


def planned(ann: Cli, *words: str) -> dict[tuple[str, str], str]:
    answer = ann.json("apply", "team", "--owner", "team", "--dry-run", *words)
    return {(row["kind"], row["job"]): row["change"] for row in answer["jobs"]}


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_apply_brings_all_kinds_of_files_to_their_state(ann: Cli, cell) -> None:
    assert planned(ann) == dict.fromkeys(TEAM, "submit"), "the job may use the config file of the same folder"
    assert not ConfigFile.objects.exists()
    assert not JobTemplate.objects.exists()
    ann.out("apply", "team", "--owner", "team", "--yes")
    for model in (ConfigFile, JobTemplate, Job, CronJob, Workflow):
        assert {row.labels["applied-by"] for row in model.objects.all()} == {"team"}, model.__name__
    assert "labels" not in JobTemplate.objects.get().content["job"]
    assert planned(ann) == dict.fromkeys(TEAM, "unchanged")

    replace(ann.folder / "team" / "greeting.conf", "color: blue", "color: red")
    replace(ann.folder / "team" / "greeter.yaml", "cpu: 50m", "cpu: 60m")
    replace(ann.folder / "team" / "report.yaml", "about one day", "about a day")
    replace(ann.folder / "team" / "cleanup.yaml", "0 4 * * 0", "0 5 * * 0")
    shown = ann.out("apply", "team", "--owner", "team", "--dry-run")
    for line in ("-color: blue", "+color: red", 'task.limit.cpu: "50m" → "60m"', 'schedule: "0 4 * * 0" → "0 5 * * 0"'):
        assert f"  {line}\n" in shown
    assert '  description: "A report about one day." → "A report about a day."\n' in shown
    assert ConfigVersion.objects.count() == 1
    ann.out("apply", "team", "--owner", "team", "--yes")
    assert (ConfigVersion.objects.count(), JobTemplate.objects.get().version, Job.objects.get().spec_version) == (
        2,
        2,
        2,
    )
    assert CronJob.objects.get().schedule == "0 5 * * 0"

    row = Workflow.objects.get()
    for name in ("load", "check"):
        workflow_rows.advance(cell)
        workflow_rows.end(row, name)
    workflow_rows.advance(cell)
    assert Workflow.objects.get().state == "succeeded"
    Workflow.objects.update(keep_s=0, key="")
    while retention.old_remove(cell.pk):
        pass
    ann.out("apply", "team", "--owner", "team", "--yes")
    assert (Workflow.objects.count(), AppliedWorkflow.objects.count()) == (0, 1), "also when its history is gone"
    replace(ann.folder / "team" / "import-2026.yaml", "[echo, loaded]", "[echo, again]")
    ann.out("apply", "team", "--owner", "team", "--yes")
    assert Workflow.objects.get().state == "running"
    replace(ann.folder / "team" / "import-2026.yaml", "[echo, again]", "[echo, later]")
    assert "a live workflow cannot be changed" in ann.run("apply", "team", "--owner", "team", "--yes").stderr


def test_apply_prunes_only_what_it_owns(ann: Cli, cell, tenant) -> None:
    who = world.principal("ann", tenant=tenant)
    config_rows.a_file(who, tenant, name="mine")
    template_apply(who, cell, "own")
    ann.out("apply", "team", "--owner", "team", "--yes")
    for file in ("greeting.jsonnet", "greeter.yaml", "report.yaml", "cleanup.yaml", "import-2026.yaml"):
        (ann.folder / "team" / file).unlink()
    (ann.folder / "team" / "last.json").write_text('{"name": "last", "task": {"command": ["x"]}}')
    ends = {"ConfigFile": "delete", "Template": "delete", "Job": "kill", "CronJob": "delete", "Workflow": "cancel"}
    assert planned(ann, "--prune") == {
        ("Job", "cc/ubar/last"): "submit",
        **{(kind, name): ends[kind] for kind, name in TEAM},
    }
    ann.out("apply", "team", "--owner", "team", "--yes", "--prune")
    assert [row.name for row in ConfigFile.objects.filter(deleted_at=None)] == ["mine"]
    assert [row.name for row in JobTemplate.objects.all()] == ["own"]
    assert [job.name for job in Job.objects.exclude(state="dead")] == ["last"]
    assert not CronJob.objects.exists()
    assert Workflow.objects.get().state in ("cancelling", "cancelled")
    assert planned(ann, "--prune") == {("Job", "cc/ubar/last"): "unchanged"}


def test_labels_of_a_config_file_are_a_change_of_their_own(ann: Cli, tenant) -> None:
    who = world.principal("ann", tenant=tenant)
    config_rows.a_file(who, tenant, (ann.folder / "team" / "greeting.conf").read_bytes(), name="greeting")
    row = next(row for row in ann.json("apply", "team", "--dry-run")["jobs"] if row["kind"] == "ConfigFile")
    assert (row["change"], row["changes"]) == ("update", ['labels.applied-by: not set → "team"'])
    ann.out("apply", "team", "--yes")
    assert ConfigVersion.objects.count() == 1, "no new version"
    assert Record.objects.get(kind="config.labelled").data["labels"] == {"applied-by": "team"}
    config_rows.a_file(who, tenant, b"color: green\n", name="greeting")
    assert ConfigFile.objects.get().labels == {"applied-by": "team"}, "a write by hand keeps the labels"
    assert not Event.objects.filter(kind="job.restarted").exists()
    (ann.folder / "team" / "wrong.yaml").write_text("kind: ConfigFile\nname: wrong\nfile: x\n")
    assert "a config file has no such field" in ann.run("apply", "team", "--yes").stderr
