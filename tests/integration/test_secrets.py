"""Tests of secrets in the database: changes, permissions, checks of job files, keys, and what machines get."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from borglet.messages import TaskKey
from quota.models import Record
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Principal, Role, Scope
from scheduling.identity.task_tokens import LEVELS
from scheduling.jobs import submit_and_kill, updates, why
from scheduling.journal.sql import query
from scheduling.link.views import desired
from scheduling.link.views.concerned_machines import concerned_machines
from scheduling.master.metrics import CellCollector
from scheduling.models import Cell, Event, Job, Machine, Secret, SecretVersion, Task
from scheduling.secrets import delivery, job_uses, rekeying, secrets, selectors
from tests.integration import cron_rows, rows, secret_rows, world
from tests.integration.link_world import running_link

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def keys(settings):
    settings.BORG_SECRET_KEYS = secret_rows.OLD


@pytest.fixture
def olga(tenant):
    return world.principal("olga", tenant=tenant, role=Role.OWNER)


def values_of(job: Job, machine, index: int = 0) -> dict[str, bytes]:
    task = Task.objects.get(job=job, index=index)
    (answer,) = delivery.values_for(machine.id, [TaskKey(job.uid.hex, index, task.incarnation)])
    assert answer.problems == []
    return {value.file or value.env: value.value for value in answer.values}


def problems_of(job: Job, machine, index: int = 0) -> list[str]:
    task = Task.objects.get(job=job, index=index)
    (answer,) = delivery.values_for(machine.id, [TaskKey(job.uid.hex, index, task.incarnation)])
    assert answer.values == []
    return answer.problems


def installing(job: Job) -> Task:
    """Return task 0 as it is after its machine has reported that it waits for its secrets."""
    task = Task.objects.select_related("machine").get(job=job, index=0)
    task.phase = "installing"
    return task


def refs_of(cell, machine) -> list[tuple[str, int]]:
    loaded = desired.load(cell.id, [machine.id], desired.Specs())[machine.id]
    return [(ref.name, ref.version) for task in loaded.desired.run for ref in task.secrets]


def test_a_version_is_encrypted_and_recorded_without_its_value(tenant, olga) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    secret = secret_rows.a_secret(olga, tenant, "db", b"hunter3")
    assert secret.newest_version == 2
    rows_of = list(SecretVersion.objects.order_by("version"))
    assert [(row.version, row.size_bytes, row.is_text, row.created_by) for row in rows_of] == [
        (1, 7, True, "olga"),
        (2, 7, True, "olga"),
    ]
    assert rows_of[0].fingerprint != rows_of[1].fingerprint
    assert b"hunter" not in bytes(rows_of[0].sealed) + bytes(rows_of[1].sealed)
    records = Record.objects.filter(kind__startswith="secret.").order_by("revision")
    assert [(row.kind, row.tenant, row.actor) for row in records] == [
        ("secret.set", "ubar", "olga"),
        ("secret.granted", "ubar", "olga"),
        ("secret.set", "ubar", "olga"),
    ]
    assert "hunter" not in json.dumps([row.data for row in records])


def test_without_a_key_nothing_is_stored(tenant, olga, settings) -> None:
    settings.BORG_SECRET_KEYS = ""
    with pytest.raises(Rejected, match="has no key for secrets, so it stores none; ask an SRE to set BORG_SECRET_KEYS"):
        secret_rows.a_secret(olga, tenant)
    assert not Secret.objects.exists()


@pytest.mark.parametrize(
    ("name", "value", "field"), [("DB", b"x", "name"), ("db", b"", "value"), ("db", b"x" * 65_537, "value")]
)
def test_a_wrong_name_or_value_is_rejected(tenant, olga, name, value, field) -> None:
    with pytest.raises(Rejected) as caught:
        secrets.secret_set(principal=olga, tenant=tenant, name=name, value=value)
    assert set(caught.value.fields) == {field}
    assert not Secret.objects.exists()


def test_operators_set_values_and_only_owners_grant_and_delete(tenant, olga, ann) -> None:
    secret_rows.a_secret(ann, tenant)
    with pytest.raises(Forbidden, match="may not grant and delete secrets for tenant ubar; ask an owner"):
        secrets.secret_grant(principal=ann, tenant=tenant, name="db", jobs="web")
    with pytest.raises(Forbidden):
        secrets.secret_delete(principal=ann, tenant=tenant, name="db")
    viewer = world.principal("vera", tenant=tenant, role=Role.VIEWER)
    with pytest.raises(Forbidden, match="may not set values of secrets"):
        secret_rows.a_secret(viewer, tenant)
    stranger = world.principal("eve", tenant=rows.a_tenant("other"))
    for call in (
        lambda: secret_rows.a_secret(stranger, tenant),
        lambda: secrets.secret_grant(principal=stranger, tenant=tenant, name="db", jobs="web"),
        lambda: list(selectors.secrets_of(stranger, tenant)),
    ):
        with pytest.raises(NotFound):
            call()


def test_a_job_may_use_only_secrets_that_are_granted_to_its_name(cell, tenant, olga, ann) -> None:
    with pytest.raises(Rejected, match=r"task.secrets\[0\].name: tenant ubar has no secret 'db'; create it"):
        world.submit(ann, cell, secret_rows.using())
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "db-*")
    with pytest.raises(Rejected, match="secret db is not granted to job web in cell cc; grant it with `borgctl secret"):
        world.submit(ann, cell, secret_rows.using())
    secrets.secret_grant(principal=olga, tenant=tenant, name="db", jobs="w*", cell="cc")
    with pytest.raises(Rejected, match=r"secrets\[0\].version: secret db has no version 2; give latest, or one of 1"):
        world.submit(ann, cell, secret_rows.using({"name": "db", "file": "a", "version": 2}))
    secret_rows.a_secret(olga, tenant, "blob", b"\xff\0", "*")
    with pytest.raises(Rejected, match=r"secrets\[0\].env: version 1 of secret blob is not text; deliver it as a file"):
        world.submit(ann, cell, secret_rows.using({"name": "blob", "env": "BLOB"}))
    assert world.submit(ann, cell, secret_rows.using()).name == "web"
    assert not Job.objects.exclude(name="web").exists()


def test_an_update_is_checked_only_for_what_is_new(cell, tenant, olga, ann) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    job = world.submit(ann, cell, secret_rows.using())
    secrets.secret_revoke(principal=olga, tenant=tenant, name="db", jobs="web")
    scaled = world.read(cell, secret_rows.using() | {"tasks": 4})
    assert updates.job_update(principal=ann, job=job, job_spec=scaled).outcome == "updated"
    other = world.read(cell, secret_rows.using({"name": "db", "env": "DB"}))
    with pytest.raises(Rejected, match="is not granted to job web"):
        updates.job_update(principal=ann, job=job, job_spec=other)


def test_new_jobs_may_not_have_secrets_in_plain_text(cell, tenant, ann) -> None:
    plain = world.with_task(env={"DB_PASSWORD": "hunter2"})
    with pytest.raises(Rejected, match=r"task\.env\.DB_PASSWORD: the value looks like a secret") as caught:
        world.submit(ann, cell, plain)
    assert "hunter2" not in caught.value.detail
    assert "hunter2" not in json.dumps(list(Event.objects.values_list("data", flat=True)))
    declared = world.with_task(env={"DB_PASSWORD": "hunter2"}, plain_env=["DB_PASSWORD"])
    job = world.submit(ann, cell, declared)
    newer = world.read(cell, world.with_task(env={"DB_PASSWORD": "hunter3"}))
    assert updates.job_update(principal=ann, job=job, job_spec=newer).outcome == "updated", "it had this name before"
    more = world.read(cell, world.with_task(env={"DB_PASSWORD": "hunter3", "API_TOKEN": "t"}))
    with pytest.raises(Rejected, match=r"task\.env\.API_TOKEN"):
        updates.job_update(principal=ann, job=job, job_spec=more)


def test_a_machine_gets_values_only_of_its_tasks(cell, tenant, olga, ann, machine) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    job = world.submit(ann, cell, secret_rows.using({"name": "db", "file": "p"}, {"name": "db", "env": "P"}))
    world.place(job, machine, 0)
    assert values_of(job, machine) == {"p": b"hunter2", "P": b"hunter2"}
    other = rows.a_machine(cell, "m2")
    strange = [TaskKey(job.uid.hex, 1, 1), TaskKey(job.uid.hex, 0, 2), TaskKey("x", 0, 1)]
    for place, keys in ((machine, strange), (other, [*strange, TaskKey(job.uid.hex, 0, 1)])):
        for answer in delivery.values_for(place.id, keys):
            assert answer.values == []
            assert "this machine does not run task" in answer.problems[0]


def test_one_request_for_many_tasks_makes_three_queries_and_has_a_bounded_answer(
    cell, tenant, olga, ann, machine, monkeypatch, django_assert_num_queries
) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    job = world.submit(ann, cell, secret_rows.using() | {"tasks": 6})
    world.place(job, machine, *range(6))
    keys = [TaskKey(job.uid.hex, index, 1) for index in range(6)]
    with django_assert_num_queries(3):
        answers = delivery.values_for(machine.id, keys)
    assert [[value.value for value in answer.values] for answer in answers] == [[b"hunter2"]] * 6
    monkeypatch.setattr(delivery, "MOST_BYTES", 20)
    answers = delivery.values_for(machine.id, keys)
    assert [len(answer.values) for answer in answers] == [1, 1, 1, 0, 0, 0]
    assert answers[-1].problems == [
        "the answer of the link server is full; the machine requests the secrets of this task again"
    ]


def test_a_new_version_reaches_the_desired_state_of_running_tasks(cell, tenant, olga, ann, machine) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    pinned = {"name": "db", "file": "first", "version": 1}
    job = world.submit(ann, cell, secret_rows.using({"name": "db", "file": "newest"}, pinned) | {"tasks": 1})
    world.place(job, machine, 0)
    assert refs_of(cell, machine) == [("db", 1), ("db", 1)]
    cell.refresh_from_db()
    before = cell.revision
    secret_rows.a_secret(olga, tenant, "db", b"hunter3")
    cell.refresh_from_db()
    assert concerned_machines(cell.id, before, newest=cell.revision) == {machine.id}
    assert refs_of(cell, machine) == [("db", 2), ("db", 1)]
    assert values_of(job, machine) == {"newest": b"hunter3", "first": b"hunter2"}
    event = Event.objects.get(kind="job.secret", revision__gt=before)
    assert (event.job_id, event.actor, event.data["change"], event.data["version"]) == (job.id, "olga", "set", 2)
    assert "hunter" not in json.dumps(event.data)


def test_without_grant_or_secret_new_starts_wait_with_a_reason(cell, tenant, olga, ann, machine) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    job = world.submit(ann, cell, secret_rows.using())
    world.place(job, machine, 0)
    secrets.secret_revoke(principal=olga, tenant=tenant, name="db", jobs="web")
    assert refs_of(cell, machine) == [("db", 0)]
    assert problems_of(job, machine) == [
        "secret db is not granted to job web in cell cc; grant it with `borgctl secret grant db web`"
    ]
    task = installing(job)
    assert any(
        "waits for a secret: secret db is not granted" in text for text in why.explain_task(job, task, ann).sentences
    )
    with pytest.raises(Conflict, match="is used by cc/web; change or end these jobs, cron jobs and workflows, or"):
        secrets.secret_delete(principal=olga, tenant=tenant, name="db")
    secrets.secret_delete(principal=olga, tenant=tenant, name="db", force=True)
    assert "tenant ubar has no secret 'db'" in problems_of(job, machine)[0]
    assert not SecretVersion.objects.exists()
    secret_rows.a_secret(olga, tenant, "db", b"again", "web")
    assert refs_of(cell, machine) == [("db", 2)], "a new secret of the same name has another version"
    assert values_of(job, machine) == {"password": b"again"}


def test_old_versions_are_deleted_unless_a_live_job_names_them(cell, tenant, olga, ann, monkeypatch) -> None:
    monkeypatch.setattr(secrets, "KEPT_VERSIONS", 2)
    secret_rows.a_secret(olga, tenant, "db", b"1", "web")
    world.submit(ann, cell, secret_rows.using({"name": "db", "file": "a", "version": 1}))
    for value in (b"2", b"3", b"4"):
        secret_rows.a_secret(olga, tenant, "db", value)
    assert set(SecretVersion.objects.values_list("version", flat=True)) == {1, 3, 4}


def test_rekey_encrypts_all_rows_with_the_newest_key(tenant, olga, settings, monkeypatch, capsys) -> None:
    monkeypatch.setattr(rekeying, "BATCH", 2)
    for number in range(5):
        secret_rows.a_secret(olga, tenant, f"s{number}", b"hunter2")
    before = set(SecretVersion.objects.values_list("fingerprint", flat=True))
    settings.BORG_SECRET_KEYS = f"{secret_rows.NEW},{secret_rows.OLD}"
    call_command("secrets", "rekey")
    assert json.loads(capsys.readouterr().out) == {"changed": 5, "unreadable": []}
    settings.BORG_SECRET_KEYS = secret_rows.NEW
    call_command("secrets", "status")
    status = json.loads(capsys.readouterr().out)
    assert [(use["rows"], use["held"], use["newest"]) for use in status["keys"]] == [(5, True, True)]
    assert status["unreadable"] == []
    assert not before & set(SecretVersion.objects.values_list("fingerprint", flat=True))
    assert sum(row.data["rows"] for row in Record.objects.filter(kind="secret.rekeyed")) == 5


def test_a_lost_key_is_reported_and_cured_by_setting_the_secret_again(
    cell, tenant, olga, ann, machine, settings, capsys
) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    job = world.submit(ann, cell, secret_rows.using())
    world.place(job, machine, 0)
    settings.BORG_SECRET_KEYS = secret_rows.NEW
    call_command("secrets", "status")
    assert json.loads(capsys.readouterr().out)["unreadable"] == ["ubar/db"]
    (family,) = [one for one in CellCollector().collect() if one.name == "borg_secret_values_unreadable"]
    assert [sample.value for sample in family.samples] == [1]
    with pytest.raises(CommandError, match="1 values cannot be decrypted, and stay as they are"):
        call_command("secrets", "rekey")
    (problem,) = problems_of(job, machine)
    assert "which BORG_SECRET_KEYS does not contain; add the key, or set the secret again" in problem
    task = installing(job)
    assert any("waits for a secret: the key" in text for text in why.explain_task(job, task, ann).sentences)
    secret_rows.a_secret(olga, tenant, "db", b"hunter3")
    assert values_of(job, machine) == {"password": b"hunter3"}


def test_rest_sets_grants_shows_and_deletes_without_returning_a_value(tenant) -> None:
    client = world.bearer(world.a_user("olga", tenant=tenant, role=Role.OWNER))
    path = "/api/v1/tenants/ubar/secrets/"
    answers = [
        client.put(f"{path}db/?dry_run=1", {"value": "hunter2"}, content_type="application/json"),
        client.put(f"{path}db/", {"value": " hunter2\n"}, content_type="application/json"),
        client.put(f"{path}db/", {"value_base64": "aHVudGVyMg=="}, content_type="application/json"),
        client.post(f"{path}db/grant/", {"jobs": "web"}, content_type="application/json"),
        client.get(f"{path}db/"),
        client.get(path),
        client.post(f"{path}db/revoke/", {"jobs": "web"}, content_type="application/json"),
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 200, 200, 200, 200]
    assert "hunter" not in "".join(answer.content.decode() for answer in answers)
    shown = answers[4].json()
    assert [(row["version"], row["size_bytes"]) for row in shown["versions"]] == [(2, 7), (1, 9)]
    assert [row["jobs"] for row in shown["grants"]] == ["web"]
    for body, field in (
        ({}, "value"),
        ({"value": "a", "value_base64": "YQ=="}, "value"),
        ({"value_base64": "?"}, "value_base64"),
    ):
        refused = client.put(f"{path}db/", body, content_type="application/json")
        assert (refused.status_code, list(refused.json()["fields"])) == (422, [field])
    reader = world.bearer(world.a_user("olga"), scopes=[Scope.READ])
    assert reader.put(f"{path}db/", {"value": "x"}, content_type="application/json").status_code == 403
    assert client.delete(f"{path}db/").status_code == 204
    assert client.get(f"{path}db/").status_code == 404


def test_pages_set_and_grant_and_never_show_a_value(client, tenant) -> None:
    client.force_login(world.a_user("olga", tenant=tenant, role=Role.OWNER))
    path = "/tenants/ubar/secrets/"
    made = client.post(path, {"name": "db", "value": "line 1\r\nhunter2"}, follow=True)
    assert made.status_code == 200
    assert SecretVersion.objects.get().size_bytes == len("line 1\nhunter2")
    for fields in ({"do": "grant", "jobs": "web", "cell": ""}, {"do": "set", "value": "hunter3"}):
        made = client.post(f"{path}db/", fields, follow=True)
        assert made.status_code == 200
        assert "hunter" not in made.content.decode()
    refused = client.post(path, {"name": "No", "value": "hunter4"})
    assert refused.status_code == 422
    assert "hunter4" not in refused.content.decode()
    assert client.post(f"{path}db/", {"do": "revoke", "jobs": "web", "cell": ""}, follow=True).status_code == 200
    assert client.post(f"{path}db/", {"do": "delete"}, follow=True).status_code == 200
    assert client.get(f"{path}db/").status_code == 404


def test_a_dry_run_of_a_submission_checks_secrets(cell, tenant, ann) -> None:
    read = submit_and_kill.spec_for(principal=ann, cell=cell, file=secret_rows.using(), tenant="ubar")
    with pytest.raises(Rejected, match="has no secret 'db'"):
        submit_and_kill.job_submit(principal=ann, cell=cell, job_spec=read, dry_run=True)


@pytest.mark.parametrize("level", ["read", "submit"])
def test_a_task_changes_no_secret_because_it_is_limited_to_its_cell(cell, tenant, olga, level: str) -> None:
    scopes, role = LEVELS[level]
    task = Principal(name="task:web/0", roles={"ubar": role}, tenant="ubar", cell="cc", scopes=scopes)
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    for change in (
        lambda: secret_rows.a_secret(task, tenant, "db", b"hunter3"),
        lambda: secrets.secret_grant(principal=task, tenant=tenant, name="db", jobs="x"),
        lambda: secrets.secret_revoke(principal=task, tenant=tenant, name="db", jobs="web"),
        lambda: secrets.secret_delete(principal=task, tenant=tenant, name="db"),
    ):
        with pytest.raises(Forbidden):
            change()
    bound = Principal(name="olga", roles={"ubar": Role.OWNER}, cell="cc")
    with pytest.raises(Forbidden, match="olga is limited to cell cc, and secrets belong to all cells of ubar"):
        secret_rows.a_secret(bound, tenant, "db", b"hunter3")
    assert SecretVersion.objects.count() == 1


def test_an_equal_value_changes_nothing(cell, tenant, olga, ann, settings) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    world.submit(ann, cell, secret_rows.using())
    assert secret_rows.a_secret(olga, tenant, "db", b"hunter2").newest_version == 1
    assert not Event.objects.filter(kind="job.secret").exists()
    settings.BORG_SECRET_KEYS = secret_rows.NEW
    assert secret_rows.a_secret(olga, tenant, "db", b"hunter2").newest_version == 2, "its key is lost"


def test_old_versions_of_specs_do_not_use_a_secret(cell, tenant, olga, ann) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    job = world.submit(ann, cell, secret_rows.using() | {"overrides": {"1": {"secrets": [{"name": "db", "env": "A"}]}}})
    (user,) = job_uses.jobs_using(tenant.pk, "db")
    assert (user.job_id, user.cell, user.name, user.versions) == (job.id, "cc", "web", ("latest",))
    assert job_uses.jobs_using(tenant.pk, "d") == []
    without = world.read(cell, world.with_task())
    for _ in range(2):
        updates.job_update(principal=ann, job=job, job_spec=without)
    assert job_uses.jobs_using(tenant.pk, "db") == []


def test_the_jobs_that_use_a_secret_are_found_with_an_index(cell, tenant, olga, ann) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    world.submit(ann, cell, secret_rows.using())
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            "EXPLAIN SELECT job_id FROM scheduling_jobspec AS s"
            " WHERE s.secrets @> jsonb_build_array(%s::text) AND s.secrets <> '[]'",
            ["db"],
        )
        assert "spec_by_secret" in str(cursor.fetchall())


def test_a_submission_while_a_secret_changes_is_noticed(cell, tenant, olga, ann, monkeypatch) -> None:
    """The job is submitted after the first look for jobs, and before the secret is locked."""
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    look, submitted = job_uses.jobs_using, []

    def look_then_submit(*where):
        found = look(*where)
        if not submitted:
            submitted.append(world.submit(ann, cell, secret_rows.using()))
        return found

    monkeypatch.setattr(job_uses, "jobs_using", look_then_submit)
    secret_rows.a_secret(olga, tenant, "db", b"hunter3")
    event = Event.objects.get(kind="job.secret")
    assert (event.job_id, event.data["version"]) == (submitted[0].id, 2)
    assert SecretVersion.objects.count() == 2


def test_a_submission_that_waits_for_a_change_reads_the_new_version(cell, tenant, olga, ann) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            secret_rows.a_secret(olga, tenant, "db", b"hunter3")
            submission = pool.submit(_submit_and_close, ann, cell)
            waits = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            for _ in range(1_000):
                if query(waits)[0][0]:
                    break
                time.sleep(0.02)
        assert submission.result().name == "web"


def _submit_and_close(who: Principal, cell: Cell) -> Job:
    try:
        return world.submit(who, cell, secret_rows.using())
    finally:
        connection.close()


def test_cron_jobs_need_their_secrets_and_keep_them(cell, tenant, olga, ann) -> None:
    job = {"task": {"command": ["serve"], "secrets": [{"name": "db", "file": "a", "version": 1}]}}
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "nightly")
    with pytest.raises(
        Rejected, match=r"job.task.secrets\[0\].name: .*grant it with `borgctl secret grant db nightly-\*`"
    ):
        cron_rows.apply(ann, cell, "nightly", job=job)
    secrets.secret_grant(principal=olga, tenant=tenant, name="db", jobs="nightly-*")
    cron_rows.apply(ann, cell, "nightly", job=job)
    (user,) = job_uses.jobs_using(tenant.pk, "db")
    assert (user.job_id, user.name, user.kind, user.versions) == (0, "nightly", "CronJob", ("1",))
    with pytest.raises(Conflict, match="is used by cc/nightly"):
        secrets.secret_delete(principal=olga, tenant=tenant, name="db")


def test_a_variable_is_short(cell, tenant, olga, ann) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"x" * 4097, "web")
    with pytest.raises(
        Rejected, match=r"secrets\[0\].env: version 1 of secret db has 4097 bytes; deliver it as a file"
    ):
        world.submit(ann, cell, secret_rows.using({"name": "db", "env": "DB"}))


def test_the_link_sends_secrets_only_to_known_machines(cell, tenant, olga, ann) -> None:
    secret_rows.a_secret(olga, tenant, "db", b"hunter2", "web")
    job = world.submit(ann, cell, secret_rows.using())
    with running_link() as link, link.machine(cell, "m1") as one, link.machine(cell, "m2") as two:
        world.place(job, Machine.objects.get(hostname="m1"), 0)
        body = json.dumps([{"job": job.uid.hex, "index": 0, "incarnation": 1}]).encode()

        def ask(credentials: str, content: bytes = body) -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {credentials}"} if credentials else {}
            connection = http.client.HTTPSConnection("127.0.0.1", link.port, context=link.context, timeout=30.0)
            connection.request("POST", "/secrets", content, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer.status, text

        status, text = ask(f"m1:{one.secret}")
        assert (status, "aHVudGVyMg==" in text) == (200, True)
        status, text = ask(f"m2:{two.secret}")
        assert (status, "aHVudGVyMg==" in text, "does not run task" in text) == (200, False, True)
        for credentials in ("", "m1:wrong", f"m1:{two.secret}"):
            assert ask(credentials)[0] == 401
        assert ask(f"m1:{one.secret}", b"[{]")[0] == 422
        assert ask(f"m1:{one.secret}", b"x" * 100_000)[0] == 413
        assert ask(f"m1:{one.secret}", b"[" + b",".join([body[1:-1]] * 101) + b"]")[0] == 422
