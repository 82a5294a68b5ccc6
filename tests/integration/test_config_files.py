"""Tests of config files in the database: changes, restarts, checks of job files, and what machines get."""

from __future__ import annotations

import pytest

from borglet.messages import TaskKey
from quota.models import Record
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Role
from scheduling.config_files import contents, files, selectors
from scheduling.core.vocabulary.states import TaskState
from scheduling.jobs import submit_and_kill, updates, why
from scheduling.jobs.actions import config_changes, pause
from scheduling.link.views import desired
from scheduling.link.views.concerned_machines import concerned_machines
from scheduling.models import ConfigDelivery, ConfigFile, ConfigVersion, Event, Job, Task, Update
from scheduling.services import starts, stops
from tests.integration import config_rows, cron_rows, rows, workflow_rows, world

pytestmark = pytest.mark.django_db(transaction=True)

RESTART = {"name": "flags", "file": "flags.yaml", "on_change": "restart"}


def delivered(job: Job, machine, index: int = 0) -> dict[str, tuple[int, bytes]]:
    """Return version and content of each file that a machine gets for a task now."""
    task = Task.objects.get(job=job, index=index)
    (answer,) = contents.values_for(machine.id, [TaskKey(job.uid.hex, index, task.incarnation)])
    assert answer.problems == []
    assert {value.kind for value in answer.values} == {"config"}
    return {value.file: (value.version, value.value) for value in answer.values}


def refs_of(cell, machine) -> list[tuple[str, int, str]]:
    loaded = desired.load(cell.id, [machine.id], desired.Specs())[machine.id]
    return [(ref.file, ref.version, ref.on_change) for task in loaded.desired.run for ref in task.secrets]


def has_versions(principal, tenant, name: str = "flags") -> list[tuple[str, int, int]]:
    found = selectors.task_versions(principal, selectors.file_shown(principal, tenant, name))
    return [(row.job, row.task_index, row.version) for row in found]


def test_each_write_is_a_version_and_a_rollback_writes_an_old_one_again(tenant, ann) -> None:
    config_rows.a_file(ann, tenant, b"color: red\n", comment="the first one")
    assert config_rows.a_file(ann, tenant, b"color: blue\nsize: 3\n").changed
    assert not config_rows.a_file(ann, tenant, b"color: blue\nsize: 3\n").changed, "an equal content changes nothing"
    done = config_changes.config_rollback(principal=ann, tenant=tenant, name="flags")
    assert done.file.newest_version == 3
    found = list(ConfigVersion.objects.order_by("version").values_list("version", "content", "comment", "created_by"))
    assert found == [
        (1, "color: red\n", "the first one", "ann"),
        (2, "color: blue\nsize: 3\n", "", "ann"),
        (3, "color: red\n", "version 1 again", "ann"),
    ]
    _, _, lines = selectors.difference(ann, done.file)
    assert lines[:3] == ["--- flags version 2", "+++ flags version 3", "@@ -1,2 +1 @@"]
    assert lines[3:] == ["-color: blue", "-size: 3", "+color: red"]
    kinds = Record.objects.filter(kind__startswith="config.").order_by("revision").values_list("kind", "actor")
    assert list(kinds) == [("config.written", "ann")] * 3
    with pytest.raises(NotFound, match="version"):
        config_changes.config_rollback(principal=ann, tenant=tenant, name="flags", version=9)


@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ({"name": "Flags"}, "name", "is not the name of a config file"),
        ({"content": b""}, "content", "the file is empty"),
        ({"content": b"x" * 131_073}, "content", "has 131073 bytes; give at most 131072"),
        ({"content": b"caf\xe9"}, "content", "is not text in UTF-8: byte 3 is wrong"),
        ({"content": b"a\0b"}, "content", "NUL characters"),
        (
            {"content": b"# our login\npassword: hunter2\n"},
            "content",
            r"lines of flags look like secrets: 2 \(password\)",
        ),
        ({"comment": "two\nlines"}, "comment", "write it in one line"),
    ],
)
def test_wrong_files_are_rejected_and_change_nothing(tenant, ann, given, field, text) -> None:
    with pytest.raises(Rejected, match=text) as caught:
        config_rows.a_file(ann, tenant, **given)
    assert set(caught.value.fields) == {field}
    assert "hunter2" not in str(caught.value.fields) + caught.value.detail
    assert not ConfigFile.objects.exists()


def test_a_version_is_written_only_on_top_of_the_expected_one(tenant, ann) -> None:
    config_rows.a_file(ann, tenant, b"1", if_version=0)
    with pytest.raises(Rejected, match="should have version 0, but its newest version is 1") as caught:
        config_rows.a_file(ann, tenant, b"2", if_version=0)
    assert caught.value.status == 412
    config_rows.a_file(ann, tenant, b"2", if_version=1)
    config_rows.a_file(ann, tenant, b"password: none\n", plain=True)
    assert ConfigFile.objects.get().newest_version == 3


def test_operators_write_and_other_tenants_see_nothing(tenant, ann) -> None:
    file = config_rows.a_file(ann, tenant).file
    viewer = world.principal("vera", tenant=tenant, role=Role.VIEWER)
    assert selectors.version_shown(viewer, file).content == "color: red\n"
    with pytest.raises(Forbidden, match="may not change config files"):
        config_rows.a_file(viewer, tenant, b"2")
    stranger = world.principal("eve", tenant=rows.a_tenant("other"))
    for call in (
        lambda: config_rows.a_file(stranger, tenant, b"2"),
        lambda: files.config_delete(principal=stranger, tenant=tenant, name="flags"),
        lambda: list(selectors.files_of(stranger, tenant)),
        lambda: selectors.version_shown(stranger, file),
        lambda: selectors.task_versions(stranger, file),
    ):
        with pytest.raises(NotFound):
            call()


def test_unknown_files_and_versions_are_rejected_with_a_cure(cell, tenant, ann) -> None:
    with pytest.raises(
        Rejected, match=r"no config file 'flags'; create it with `borgctl config put flags FILE`"
    ) as one:
        world.submit(ann, cell, config_rows.using())
    assert set(one.value.fields) == {"task.configs[0].name"}
    config_rows.a_file(ann, tenant)
    with pytest.raises(Rejected, match="flags has no version 7; give latest, or one of 1") as two:
        world.submit(ann, cell, config_rows.using({"name": "flags", "version": 7}))
    assert set(two.value.fields) == {"task.configs[0].version"}
    job = world.submit(ann, cell, config_rows.using())
    spec = world.read(cell, config_rows.using({"name": "other"}))
    with pytest.raises(Rejected, match="no config file 'other'"):
        updates.job_update(principal=ann, job=job, job_spec=spec)


def test_a_new_version_reaches_running_tasks(cell, tenant, ann, machine) -> None:
    config_rows.a_file(ann, tenant, b"1")
    pinned = {"name": "flags", "file": "first", "version": 1}
    watched = {"name": "flags", "file": "newest", "on_change": "signal"}
    job = world.submit(ann, cell, config_rows.using(watched, pinned))
    world.place(job, machine, 0)
    assert refs_of(cell, machine) == [("newest", 1, "signal"), ("first", 1, "nothing")]
    assert delivered(job, machine) == {"newest": (1, b"1"), "first": (1, b"1")}
    cell.refresh_from_db()
    before = cell.revision
    done = config_rows.a_file(ann, tenant, b"2")
    assert [(user.cell, user.name) for user in done.users] == [("cc", "web")]
    assert done.restarted == []
    cell.refresh_from_db()
    assert concerned_machines(cell.id, before, newest=cell.revision) == {machine.id}
    assert refs_of(cell, machine) == [("newest", 2, "signal"), ("first", 1, "nothing")]
    assert has_versions(ann, tenant) == [("web", 0, 1), ("web", 0, 1)]
    assert delivered(job, machine) == {"newest": (2, b"2"), "first": (1, b"1")}
    assert has_versions(ann, tenant) == [("web", 0, 1), ("web", 0, 2)]
    assert files.deliveries_sweep() == 0
    event = Event.objects.get(kind="job.config", revision__gt=before)
    assert (event.job_id, event.actor, event.data["config"], event.data["version"]) == (job.id, "ann", "flags", 2)
    assert not Update.objects.filter(job=job).exists()
    submit_and_kill.job_kill(principal=ann, job=job)
    assert files.deliveries_sweep() == 2


def test_a_new_version_restarts_the_jobs_that_ask_for_it(cell, tenant, ann, machine) -> None:
    config_rows.a_file(ann, tenant, b"1")
    job = world.submit(ann, cell, config_rows.using(RESTART))
    world.bring_up(job, machine)
    assert delivered(job, machine) == {"flags.yaml": (1, b"1")}
    done = config_rows.a_file(ann, tenant, b"2")
    assert done.restarted == ["cc/web"]
    update = Update.objects.get(job=job)
    assert (update.state, update.restarts) == (Update.OPEN, [[0, 2, 1]])
    assert delivered(job, machine) == {"flags.yaml": (1, b"1")}, "an incarnation keeps its version, also after a crash"
    updates.update_advance_job(job)
    pending = Task.objects.filter(job=job, state=TaskState.PENDING.value)
    assert len(pending) == update.max_down == 1
    world.place(job, machine, pending[0].index)
    assert delivered(job, machine, pending[0].index) == {"flags.yaml": (2, b"2")}

    assert config_rows.a_file(ann, tenant, b"3").restarted == ["cc/web"], "it goes on with the open restart"
    assert Update.objects.filter(job=job, state=Update.OPEN).get().restarts != update.restarts
    pause.update_pause(principal=ann, job=job)
    with pytest.raises(Conflict, match="a restart of the job is paused; resume it with `borgctl resume web`; or write"):
        config_rows.a_file(ann, tenant, b"4")
    config_rows.a_file(ann, tenant, b"4", restart=False)
    assert Update.objects.filter(job=job).count() == 2


def test_a_job_that_cannot_restart_now_keeps_the_file_as_it_is(cell, tenant, ann, machine) -> None:
    config_rows.a_file(ann, tenant, b"1")
    job = world.submit(ann, cell, config_rows.using(RESTART))
    world.bring_up(job, machine)
    other = world.read(cell, config_rows.using(RESTART, command=["sleep", "7"]))
    updates.job_update(principal=ann, job=job, job_spec=other)
    with pytest.raises(Conflict, match=r"would restart job web: cannot restart job web.*--no-restart") as caught:
        config_rows.a_file(ann, tenant, b"2")
    assert caught.value.code == "update-open"
    assert ConfigFile.objects.get().newest_version == 1
    assert config_rows.a_file(ann, tenant, b"2", restart=False).changed


def test_a_file_in_use_is_not_deleted_and_a_named_version_stays(cell, tenant, ann, monkeypatch) -> None:
    monkeypatch.setattr(files, "KEPT_VERSIONS", 2)
    config_rows.a_file(ann, tenant, b"1")
    job = world.submit(ann, cell, config_rows.using({"name": "flags", "version": 1}))
    for number in (2, 3, 4):
        config_rows.a_file(ann, tenant, str(number).encode())
    assert set(ConfigVersion.objects.values_list("version", flat=True)) == {1, 3, 4}
    with pytest.raises(Conflict, match="is used by cc/web; change or end these jobs"):
        files.config_delete(principal=ann, tenant=tenant, name="flags")
    submit_and_kill.job_kill(principal=ann, job=job)
    files.config_delete(principal=ann, tenant=tenant, name="flags")
    assert not ConfigVersion.objects.exists()
    with pytest.raises(NotFound):
        selectors.file_shown(ann, tenant, "flags")
    assert config_rows.a_file(ann, tenant, b"5").file.newest_version == 5, "a new file gets new numbers"


def test_cron_jobs_use_files_too(cell, tenant, ann) -> None:
    with pytest.raises(Rejected, match="no config file 'flags'") as caught:
        cron_rows.apply(ann, cell, job=config_rows.using())
    assert set(caught.value.fields) == {"job.task.configs[0].name"}
    config_rows.a_file(ann, tenant)
    cron_rows.apply(ann, cell, job=config_rows.using())
    with pytest.raises(Conflict, match="is used by cc/"):
        files.config_delete(principal=ann, tenant=tenant, name="flags")


def test_a_task_waits_for_a_version_that_is_gone_and_says_so(cell, tenant, ann, machine) -> None:
    config_rows.a_file(ann, tenant)
    job = world.submit(ann, cell, config_rows.using())
    world.place(job, machine, 0)
    ConfigVersion.objects.all().delete()
    task = Task.objects.select_related("machine").get(job=job, index=0)
    (answer,) = contents.values_for(machine.id, [TaskKey(job.uid.hex, 0, task.incarnation)])
    assert answer.values == []
    assert "config file flags has no version latest" in answer.problems[0]
    task.phase = "installing"
    assert any(
        "waits for a config file: config file flags" in text for text in why.explain_task(job, task, ann).sentences
    )


def test_limits_of_a_tenant(tenant, ann, monkeypatch) -> None:
    config_rows.a_file(ann, tenant, b"12345")
    monkeypatch.setattr(files, "MAX_FILES", 1)
    with pytest.raises(Conflict, match="has 1 config files, which is the maximum"):
        config_rows.a_file(ann, tenant, name="other")
    monkeypatch.setattr(files, "MAX_TENANT_BYTES", 8)
    with pytest.raises(Conflict, match="would have 9 bytes, and at most 8 are possible"):
        config_rows.a_file(ann, tenant, b"6789")
    config_rows.a_file(ann, tenant, b"678")
    assert config_changes.config_rollback(principal=ann, tenant=tenant, name="flags").changed, "also at the limit"


def test_a_file_with_large_versions_keeps_fewer(tenant, ann, monkeypatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 40)
    for number in range(8):
        config_rows.a_file(ann, tenant, str(number).encode() * 10)
    assert set(ConfigVersion.objects.values_list("version", flat=True)) == {4, 5, 6, 7, 8}


def test_a_version_is_written_also_if_the_last_job_ends_at_this_moment(cell, tenant, ann, monkeypatch) -> None:
    config_rows.a_file(ann, tenant, b"1")
    job = world.submit(ann, cell, config_rows.using())
    found = files.jobs_using(tenant.pk, "flags", "configs")
    answers = [found]
    monkeypatch.setattr(files, "jobs_using", lambda *given: answers.pop() if answers else [])
    config_rows.a_file(ann, tenant, b"2")
    assert ConfigVersion.objects.latest("version").content == "2"
    answers.append(found)
    files.config_delete(principal=ann, tenant=tenant, name="flags")
    assert not ConfigVersion.objects.exists()
    assert job.pk == found[0].job_id


def test_an_open_update_keeps_the_file_to_which_it_may_return(cell, tenant, ann, machine) -> None:
    config_rows.a_file(ann, tenant)
    job = world.submit(ann, cell, config_rows.using())
    world.bring_up(job, machine)
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, world.with_task()))
    old = Task.objects.filter(pk__in=list(Task.objects.filter(job=job, spec_version=1).values_list("pk", flat=True)))
    old.update(spec_version=2)
    with pytest.raises(Conflict, match="is used by cc/web"):
        files.config_delete(principal=ann, tenant=tenant, name="flags")
    old.update(spec_version=1)  # as the journal has it


def test_an_undo_to_a_spec_whose_file_is_gone_is_rejected(cell, tenant, ann) -> None:
    config_rows.a_file(ann, tenant)
    job = world.submit(ann, cell, config_rows.using())
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, world.with_task()))
    files.config_delete(principal=ann, tenant=tenant, name="flags")
    job.refresh_from_db()
    with pytest.raises(Rejected, match="no config file 'flags'; create it"):
        updates.job_undo(principal=ann, job=job)


def test_a_job_that_names_a_version_gets_no_event(cell, tenant, ann) -> None:
    config_rows.a_file(ann, tenant, b"1")
    world.submit(ann, cell, config_rows.using({"name": "flags", "version": 1}))
    config_rows.a_file(ann, tenant, b"2")
    assert not Event.objects.filter(kind="job.config").exists()


def test_a_workflow_uses_its_files_until_it_ends(cell, tenant, ann) -> None:
    nodes = {"load": workflow_rows.node()}
    nodes["load"]["job"] = {**workflow_rows.JOB, "task": config_rows.using()["task"]}
    with pytest.raises(Rejected, match="no config file 'flags'") as caught:
        workflow_rows.submit(ann, cell, nodes)
    assert set(caught.value.fields) == {"nodes.load.job.task.configs[0].name"}
    config_rows.a_file(ann, tenant)
    workflow_rows.submit(ann, cell, nodes)
    with pytest.raises(Conflict, match="is used by cc/"):
        files.config_delete(principal=ann, tenant=tenant, name="flags")


def test_a_stopped_service_keeps_the_files_of_its_jobs(cell, tenant, ann) -> None:
    config_rows.a_file(ann, tenant)
    world.submit(ann, cell, config_rows.using() | {"labels": {"service": "shop"}})
    stops.service_stop(principal=ann, cell=cell, tenant=tenant.name, name="shop")
    with pytest.raises(Conflict, match="is used by cc/web"):
        files.config_delete(principal=ann, tenant=tenant, name="flags")
    starts.service_start(principal=ann, cell=cell, tenant=tenant.name, name="shop")
    assert Job.objects.filter(name="web").exclude(state="dead").exists()


def test_the_queries_for_a_machine_do_not_grow_with_its_tasks(
    cell, tenant, ann, machine, django_assert_max_num_queries
) -> None:
    config_rows.a_file(ann, tenant, b"1")
    job = world.submit(ann, cell, config_rows.using(tasks=3))
    world.bring_up(job, machine)
    keys = [TaskKey(job.uid.hex, task.index, task.incarnation) for task in Task.objects.filter(job=job)]
    with django_assert_max_num_queries(8):
        answers = contents.values_for(machine.id, keys)
    assert [len(answer.values) for answer in answers] == [1, 1, 1]
    assert ConfigDelivery.objects.count() == 3
