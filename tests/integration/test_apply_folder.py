"""`borgctl apply` with all kinds of files, against a real web process. It applies the example `examples/team`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quota.models import Record
from scheduling.models import AppliedWorkflow, ConfigFile, ConfigVersion, CronJob, Event, Job, JobTemplate, Workflow
from scheduling.workflows import retention
from tests.integration import cli_world, rows, workflow_rows
from tests.integration.cli_world import Cli

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
    assert planned(ann)["Workflow", "cc/ubar/import-2026"] == "unchanged", "an ended workflow does not run again"
    Workflow.objects.update(keep_s=0, key="")
    while retention.old_remove(cell.pk):
        pass
    ann.out("apply", "team", "--owner", "team", "--yes")
    assert (Workflow.objects.count(), AppliedWorkflow.objects.count()) == (0, 1), "also when its history is gone"
    replace(ann.folder / "team" / "import-2026.yaml", "[echo, loaded]", "[echo, again]")
    ann.out("apply", "team", "--owner", "team", "--yes")
    assert Workflow.objects.get().state == "running"
    replace(ann.folder / "team" / "import-2026.yaml", "[echo, again]", "[echo, later]")
    fields = ann.failing("apply", "team", "--owner", "team", "--yes")[1]["fields"]
    assert "a live workflow cannot be changed" in fields["team/import-2026.yaml"]


def test_apply_prunes_only_what_it_owns(ann: Cli, cell) -> None:
    (ann.folder / "other.yaml").write_text("color: red\n")
    ann.out("config", "put", "mine", "other.yaml")
    template = (ann.folder / "team" / "report.yaml").read_text().replace("name: report\n", "name: own\n")
    ann.out("template", "create", ann.file(template, "own.yaml"))
    ann.out("apply", "team", "--owner", "team", "--yes")
    for file in ("greeting.jsonnet", "greeter.yaml", "report.yaml", "cleanup.yaml", "import-2026.yaml"):
        (ann.folder / "team" / file).unlink()
    (ann.folder / "team" / "last.json").write_text('{"name": "last", "task": {"command": ["x"]}}')
    ends = {"ConfigFile": "delete", "Template": "delete", "Job": "kill", "CronJob": "delete", "Workflow": "cancel"}
    assert planned(ann, "--prune") == {
        ("Job", "cc/ubar/last"): "submit",
        **{(kind, name): ends[kind] for kind, name in TEAM},
    }
    done = ann.run("apply", "team", "--owner", "team", "--yes")
    assert "stay: cc/ubar/import-2026, cc/ubar/cleanup, cc/ubar/greeter, cc/ubar/report, ubar/greeting;" in done.stderr
    ann.out("apply", "team", "--owner", "team", "--yes", "--prune")
    assert [row.name for row in ConfigFile.objects.filter(deleted_at=None)] == ["mine"]
    assert [row.name for row in JobTemplate.objects.all()] == ["own"]
    assert [job.name for job in Job.objects.exclude(state="dead")] == ["last"]
    assert not CronJob.objects.exists()
    assert Workflow.objects.get().state in ("cancelling", "cancelled")
    assert planned(ann, "--prune") == {("Job", "cc/ubar/last"): "unchanged"}


def test_labels_of_a_config_file_are_a_change_of_their_own(ann: Cli) -> None:
    (ann.folder / "greeting.conf").write_text((ann.folder / "team" / "greeting.conf").read_text())
    ann.out("config", "put", "greeting", "greeting.conf")
    row = next(row for row in ann.json("apply", "team", "--dry-run")["jobs"] if row["kind"] == "ConfigFile")
    assert (row["change"], row["changes"]) == ("update", ['labels.applied-by: not set → "team"'])
    ann.out("apply", "team", "--yes")
    assert ConfigVersion.objects.count() == 1, "no new version"
    assert Record.objects.get(kind="config.labelled").data["labels"] == {"applied-by": "team"}
    ann.out("config", "put", "greeting", "-", given="color: green\n")
    assert ConfigFile.objects.get().labels == {"applied-by": "team"}, "a write by hand keeps the labels"
    assert not Event.objects.filter(kind="job.restarted").exists()
    (ann.folder / "team" / "wrong.yaml").write_text("kind: ConfigFile\nname: wrong\nfile: x\n")
    assert "a config file has no such field" in str(ann.failing("apply", "team", "--yes")[1]["fields"])
