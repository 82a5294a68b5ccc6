"""Tests of the REST API of jobs on real PostgreSQL, with requests that a person could send with curl."""

from __future__ import annotations

import json

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from quota.vocabulary.permissions import Role, Scope
from scheduling.journal import journal
from scheduling.models import Job, JobSpec, PendingVerdict, Task
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)
JSON = "application/json"


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def tenant(cell):
    tenant = rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    return tenant


@pytest.fixture
def ann(tenant) -> Client:
    return world.bearer(world.a_user("ann", tenant=tenant, role=Role.OPERATOR))


@pytest.fixture
def job(cell, tenant):
    return world.submit(world.principal("ann", tenant=tenant, role=Role.OPERATOR), cell, world.a_file())


JOBS = "/api/v1/cells/cc/jobs/"
WEB = f"{JOBS}ubar/web/"


def put(client: Client, file, path: str = WEB):
    return client.put(path, json.dumps(file), content_type=JSON)


def post(client: Client, path: str, body=None):
    return client.post(path, json.dumps(body if body is not None else {}), content_type=JSON)


def problem(answer, status: int, code: str) -> dict:
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json"), answer.content
    body = answer.json()
    assert body["code"] == code
    assert body["type"] == f"urn:borg:{code}"
    assert body["request_id"] == answer["X-Request-ID"]
    return body


def test_a_job_is_submitted_and_read_back(cell, ann) -> None:
    answer = post(ann, JOBS, world.a_file(labels={"tier": "1"}))
    assert answer.status_code == 201, answer.content
    body = answer.json()
    assert (body["outcome"], body["tasks"]["added"], body["version"]) == ("submitted", 3, 1)
    assert (body["job"]["tenant"], body["job"]["tasks_pending"]) == ("ubar", 3)
    read = ann.get(WEB).json()
    assert read["uid"] == str(Job.objects.get().uid)
    assert (read["band"], read["appclass"], read["tasks_wanted"], read["update"]) == (
        "production",
        "latency-sensitive",
        3,
        None,
    )
    assert read["requested"]["cpu"] == 300
    assert read["revision"] == journal.newest(cell.id)
    assert read["spec"]["task"]["limit"]["cpu"] == "100m"
    assert read["why"] == ["0 of 3 tasks are up.", "3 tasks wait for the next pass of the scheduler."]
    assert put(ann, read["spec"]).json()["outcome"] == "unchanged"


def test_put_submits_updates_and_then_changes_nothing(cell, ann) -> None:
    file = world.a_file()
    del file["name"]
    assert (put(ann, file).status_code, put(ann, file).json()["outcome"]) == (201, "unchanged")
    revision = journal.newest(cell.id)
    assert put(ann, file).status_code == 200
    assert journal.newest(cell.id) == revision
    updated = put(ann, file | {"tasks": 5}).json()
    assert (updated["outcome"], updated["version"], updated["tasks"]) == (
        "updated",
        2,
        {"added": 2, "removed": 0, "restarted": 0, "in_place": 0, "kept": 3},
    )
    assert updated["ranges"] == {"kept": [[0, 2]], "added": [[3, 4]]}


def test_a_dry_run_of_everything_changes_nothing(cell, ann, job) -> None:
    revision = journal.newest(cell.id)
    assert post(ann, f"{JOBS}?dry_run=1", world.a_file("fresh")).json()["outcome"] == "submitted"
    assert post(ann, f"{WEB}update/?dry_run=1", world.a_file(tasks=9)).json()["tasks"]["added"] == 6
    assert put(ann, world.a_file(tasks=2), f"{WEB}?dry_run=true").json()["tasks"]["removed"] == 1
    assert post(ann, f"{WEB}kill/?dry_run=1").json() == {"killed": 3, "dry_run": True}
    assert ann.delete(f"{WEB}?dry_run=1").json() == {"killed": 3, "dry_run": True}
    assert post(ann, "/api/v1/cells/cc/jobs:bulk?dry_run=1", [world.a_file("fresh")]).json()["submitted"] == 1
    assert post(ann, f"{WEB}plan/", world.a_file(tasks=1)).json()["dry_run"] is True
    assert (journal.newest(cell.id), Job.objects.count()) == (revision, 1)
    problem(ann.delete(f"{WEB}?dry_run=yess"), 422, "invalid")


@pytest.mark.parametrize(
    "body, field",
    [
        (b"{", "file"),
        (b"", "name"),
        (b"[]", "file"),
        (b'{"name": "web", "task": {"command": ["x"], "limits": {}}}', "task.limits"),
        (b'{"name": "web", "task": {"command": ["x"], "limit": {"cpu": "-1"}}}', "task.limit.cpu"),
        (b'{"name": "web", "task": {"command": ["x"], "limit": {"ram": "99999999Ti"}}}', "task.limit.ram"),
        (b'{"name": "We_b", "task": {"command": ["x"]}}', "name"),
        (b'{"name": "web", "tasks": 100001, "task": {"command": ["x"]}}', "tasks"),
        (b'{"name": "web", "cell": "other", "task": {"command": ["x"]}}', "cell"),
    ],
)
def test_a_bad_file_names_the_field_and_changes_nothing(cell, ann, body, field) -> None:
    answer = ann.post(JOBS, body, content_type=JSON)
    assert field in problem(answer, 422, "invalid-spec")["fields"]
    assert (journal.newest(cell.id), Job.objects.count()) == (0, 0)


def test_too_large_a_body_is_refused_and_another_type_too(ann, settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    problem(post(ann, JOBS, world.a_file()), 413, "too-large")
    problem(ann.post(JOBS, "name: web", content_type="application/yaml"), 415, "unsupported-media-type")


def test_a_shortfall_of_quota_is_reported_in_figures(ann, cell) -> None:
    body = problem(post(ann, JOBS, world.with_task(limit={"cpu": 30})), 403, "quota-exceeded")
    assert body["figures"]["short"]["cpu"] == {"asked": 90_000, "granted": 64_000, "in_use": 0, "short": 26_000}
    planned = post(ann, f"{WEB}plan/", world.with_task(limit={"cpu": 30})).json()
    assert (planned["outcome"], planned["problem"]["code"]) == ("refused", "quota-exceeded")


@pytest.mark.parametrize(
    "path", ["/api/v1/cells/nowhere/", "/api/v1/cells/nowhere/jobs/", f"{JOBS}ubar/nothing/", f"{JOBS}nobody/web/"]
)
def test_what_is_not_there_is_not_found(ann, cell, path) -> None:
    problem(ann.get(path), 404, "not-found")


@pytest.mark.parametrize(
    "path, code",
    [
        (f"{JOBS}?state=asleep", "invalid"),
        (f"{JOBS}?label=tier", "invalid"),
        (f"{WEB}tasks/?state=up", "invalid"),
        (f"{WEB}events/?cursor=x", "invalid"),
        (f"{WEB}events/?limit=0", "invalid"),
        (f"{WEB}why/?index=-1", "invalid"),
        (f"{WEB}why/?index=99", "not-found"),
        (f"{WEB}tasks/99999999999999999999/", "not-found"),
        (f"{WEB}tasks/0/logs/?stream=x", "invalid"),
        (f"{WEB}tasks/0/logs/?offset=x", "invalid"),
        (f"{WEB}tasks/0/logs/", "no-log"),
        (f"{JOBS}?cursor=x", "invalid"),
        (f"{JOBS}ub%00ar/web/", "invalid"),
        (f"{JOBS}?tenant=%00", "invalid"),
        (f"{WEB}update/", "not-found"),
    ],
)
def test_a_bad_query_is_rejected_and_never_an_internal_error(ann, job, path, code) -> None:
    answer = ann.get(path)
    problem(answer, answer.status_code, code)


def test_a_bulk_answers_for_each(ann, cell) -> None:
    files = [world.a_file("a"), world.a_file("b", tasks=-1), "x"]
    body = post(ann, "/api/v1/cells/cc/jobs:bulk", files).json()
    assert (body["submitted"], body["refused"]) == (1, 2)
    assert [result["outcome"] for result in body["results"]] == ["submitted", "refused", "refused"]
    assert "tasks" in body["results"][1]["problem"]["fields"]
    assert body["results"][0]["uid"] == str(Job.objects.get().uid)
    problem(post(ann, "/api/v1/cells/cc/jobs:bulk", {"name": "a"}), 422, "invalid-spec")


def test_update_undo_and_versions(ann, cell, job) -> None:
    world.bring_up(job, rows.a_machine(cell))
    answer = post(ann, f"{WEB}update/", world.with_task(command=["other"])).json()
    assert (answer["tasks"]["restarted"], answer["job"]["update"]["to_version"]) == (3, 2)
    assert "3 restart, at most 1 down at once" in answer["sentence"]
    shown = ann.get(f"{WEB}update/").json()
    assert (shown["state"], shown["tasks_followed"], shown["disruptions"]) == ("open", 1, 1)
    undone = post(ann, f"{WEB}undo/").json()
    assert (undone["outcome"], undone["version"], undone["job"]["update"]) == ("updated", 3, None)
    versions = ann.get(f"{WEB}versions/").json()["results"]
    assert [version["version"] for version in versions] == [1, 2, 3]
    assert versions[0]["spec"]["task"]["command"] == versions[2]["spec"]["task"]["command"] == ["serve"]


def test_nothing_to_undo_is_a_conflict(ann, job) -> None:
    problem(post(ann, f"{WEB}undo/"), 409, "nothing-to-undo")


def test_killing_some_and_all_is_idempotent(ann, job) -> None:
    assert post(ann, f"{WEB}kill/", {"indexes": [1]}).json()["killed"] == 1
    assert post(ann, f"{WEB}kill/", {"indexes": [1]}).json()["killed"] == 0
    problem(post(ann, f"{WEB}kill/", {"indexes": [9]}), 404, "no-such-task")
    assert "tasks" in problem(post(ann, f"{WEB}kill/", {"tasks": [1]}), 422, "invalid")["fields"]
    assert ann.delete(WEB).json()["killed"] == 2
    assert ann.delete(WEB).json()["killed"] == 0
    read = ann.get(WEB).json()
    assert (read["state"], read["outcome"], read["why"]) == ("dead", "killed", ["Job web has ended: killed."])
    assert problem(post(ann, f"{WEB}update/", world.a_file(tasks=1)), 409, "job-ended")


def test_a_task_tells_where_it_runs_and_what_became_of_it(ann, cell, job) -> None:
    world.place(job, rows.a_machine(cell), 0, 1)
    world.report(job, 0)
    page = ann.get(f"{WEB}tasks/").json()
    assert page["next"] is None
    first, _, third = page["results"]
    assert (first["machine"], first["address"], first["ports"]) == ("m1", "127.0.0.1", {"http": 20000})
    assert (first["state"], first["phase"], first["up"], first["incarnation"]) == ("running", "up", True, 1)
    assert (third["state"], third["machine"], third["address"], third["ports"]) == ("pending", None, None, {})
    assert ann.get(f"{WEB}tasks/0/").json() == first
    assert [t["index"] for t in ann.get(f"{WEB}tasks/?state=running").json()["results"]] == [0, 1]
    assert ann.get(WEB).json()["tasks_up"] == 1


def test_ports_of_a_task_that_has_not_followed_keep_their_names(ann, cell, job) -> None:
    world.bring_up(job, rows.a_machine(cell))
    post(ann, f"{WEB}update/", world.with_task(ports=["grpc"]))
    ports = {t["index"]: t["ports"] for t in ann.get(f"{WEB}tasks/").json()["results"]}
    assert ports == {0: {}, 1: {"http": 20001}, 2: {"http": 20002}}


def test_why_tells_of_pending_running_and_dead_tasks(ann, cell, job) -> None:
    whys = [
        {
            "tasks": [[job.id, 3]],
            "machines": 4,
            "ruled_out": [
                {"code": "constraint", "subject": "ssd present", "machines": 3},
                {"code": "resource", "subject": "cpu", "machines": 1, "wanted": 4000, "largest": 2500},
            ],
            "changes": [{"subject": "cpu", "to": 2500, "machines": 1}],
        }
    ]
    PendingVerdict.objects.create(job=job, revision=7, at="2026-01-01T00:00:00Z", whys=whys)
    body = ann.get(f"{WEB}why/").json()
    assert (body["state"], body["verdict_revision"], body["verdicts"][0]["machines"]) == ("pending", 7, 4)
    assert body["sentences"][1] == (
        "3 tasks can't be placed on any of 4 machines: 3 machines without ssd present; 1 machine with less than"
        " 4 cores of cpu free (at most 2.5 cores). A task would fit with at most 2.5 cores of cpu (on 1 machine)."
    )
    assert ann.get(f"{WEB}why/?index=1").json()["sentences"] == [body["sentences"][1]]
    world.place(job, rows.a_machine(cell), 0)
    running = ann.get(f"{WEB}why/?index=0").json()
    assert (running["score"], running["chain"][0]["kind"]) == ({"fit": 0.5}, "task.placed")
    assert "by its score: fit 0.5" in running["sentences"][1]
    post(ann, f"{WEB}kill/", {"indexes": [0], "reason": "enough"})
    dead = ann.get(f"{WEB}why/?index=0").json()
    assert dead["sentences"][0] == "Task 0 of job web is dead: killed, enough."
    assert (dead["chain"][0]["kind"], dead["chain"][0]["actor"]) == ("task.ended", "ann")


def test_the_chain_of_causes_is_followed_to_its_first_actor(ann, cell, job) -> None:
    world.bring_up(job, rows.a_machine(cell))
    post(ann, f"{WEB}update/", world.with_task(command=["other"]))
    chain = ann.get(f"{WEB}why/?index=0").json()["chain"]
    assert [(event["kind"], event["actor"]) for event in chain] == [
        ("task.evicted", "system:updates"),
        ("update.started", "ann"),
    ]
    assert chain[0]["caused_by"] == f"{chain[1]['revision']}.{chain[1]['seq']}"


def test_events_come_newest_first_in_pages_that_cut_revisions(ann, cell, job) -> None:
    world.bring_up(job, rows.a_machine(cell))
    whole = ann.get(f"{WEB}events/").json()["results"]
    assert (whole[0]["kind"], whole[-1]["kind"]) == ("task.reported", "job.submitted")
    assert (whole[-1]["job"], whole[0]["machine"], whole[0]["task_index"]) == ("ubar/web", "m1", 2)
    paged, url = [], f"{WEB}events/?limit=2"
    while url:
        page = ann.get(url).json()
        paged += page["results"]
        url = page["next"]
    assert paged == whole


def test_lists_page_by_cursor_and_filter(ann, cell, tenant) -> None:
    files = [world.a_file(f"j{n}", priority=0, labels={"n": str(n % 2)}) for n in range(5)]
    post(ann, "/api/v1/cells/cc/jobs:bulk", files)
    names, url = [], f"{JOBS}?limit=2"
    while url:
        page = ann.get(url).json()
        names += [row["name"] for row in page["results"]]
        url = page["next"]
    assert names == [f"j{n}" for n in range(5)]
    assert len(ann.get(f"{JOBS}?label=n=1").json()["results"]) == 2
    ann.delete(f"{JOBS}ubar/j0/")
    assert len(ann.get(f"{JOBS}?state=live&tenant=ubar").json()["results"]) == 4
    assert [row["name"] for row in ann.get(f"{JOBS}?state=dead").json()["results"]] == ["j0"]


def test_lists_are_filtered_by_a_label_selector(ann, cell, tenant) -> None:
    shops = {"prod": {"app": "shop"}, "canary": {"app": "shop", "track": "canary"}, "other": {"app": "mail"}}
    post(ann, "/api/v1/cells/cc/jobs:bulk", [world.a_file(n, priority=0, labels=labels) for n, labels in shops.items()])

    def found(selector: str, state: str = "live") -> list[str]:
        answer = ann.get(JOBS, {"selector": selector, "state": state})
        return [row["name"] for row in answer.json()["results"]]

    assert found("app=shop,track!=canary") == ["prod"]
    assert found("track") == found("track=canary") == ["canary"]
    assert found("!track") == ["prod", "other"]
    assert found("app=shop,app=mail") == []
    ann.delete(f"{JOBS}ubar/canary/")
    assert found("app=shop", state="dead") == ["canary"]
    problem(ann.get(JOBS, {"selector": "app>shop"}), 422, "invalid")


@pytest.mark.parametrize(
    "path",
    [
        JOBS,
        f"{JOBS}?state=live",
        f"{WEB}tasks/",
        f"{WEB}events/",
        f"{WEB}versions/",
        "/api/v1/cells/cc/machines/",
        "/api/v1/cells/cc/events/",
        WEB,
        f"{WEB}why/",
    ],
)
def test_queries_do_not_grow_with_rows(ann, cell, tenant, job, path) -> None:
    machine = rows.a_machine(cell)
    ann.get(path)

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert ann.get(path).status_code == 200
        return len(captured)

    world.bring_up(job, machine)
    post(ann, f"{WEB}update/", world.with_task(command=["a"]))
    few = queries()
    rows.a_machine(cell, "m2")
    rows.a_machine(cell, "m3")
    post(ann, f"{WEB}update/", world.with_task(command=["b"], tasks=40))
    post(ann, "/api/v1/cells/cc/jobs:bulk", [world.a_file(f"j{n}", priority=0) for n in range(20)])
    world.place(job, machine, *range(10, 30))
    assert queries() == few


def test_a_dead_job_is_found_until_its_name_lives_again(ann, cell, job) -> None:
    ann.delete(WEB)
    assert ann.get(WEB).json()["uid"] == str(job.uid)
    assert post(ann, JOBS, world.a_file()).status_code == 201
    assert ann.get(WEB).json()["uid"] != str(job.uid)
    assert (Task.objects.count(), JobSpec.objects.count()) == (6, 2)


def test_a_token_without_the_scope_writes_nothing(tenant, cell, job) -> None:
    user = world.a_user("ann", tenant=tenant)
    reader = world.bearer(user, scopes=[Scope.READ])
    problem(put(reader, world.a_file(tasks=1)), 403, "forbidden")
    problem(reader.delete(WEB), 403, "forbidden")
    assert reader.get(WEB).status_code == 200
    problem(world.bearer(user, scopes=[Scope.WRITE]).get(WEB), 404, "not-found")


def test_machines_are_listed_drained_and_undrained(cell, tenant, ann) -> None:
    rows.a_machine(cell)
    sre = world.bearer(world.a_user("sre", sre=True))
    machines = "/api/v1/cells/cc/machines/"
    (row,) = ann.get(machines).json()["results"]
    assert (row["hostname"], row["state"], row["capacity"]["cpu"], row["tasks_running"]) == ("m1", "up", 64_000, 0)
    problem(post(ann, f"{machines}m1:drain", {"reason": "x"}), 403, "forbidden")
    assert post(sre, f"{machines}m1:drain", {"reason": "new disk"}).json()["reason"] == "new disk"
    assert ann.get(f"{machines}m1/").json()["state"] == "draining"
    assert ann.get(f"{machines}?state=draining").json()["results"][0]["hostname"] == "m1"
    assert post(sre, f"{machines}m1:undrain").json()["state"] == "up"
    problem(post(sre, f"{machines}m9:drain", {"reason": "x"}), 404, "not-found")
    assert ann.get("/api/v1/cells/cc/").json()["machines"] == {"up": 1, "draining": 0, "down": 0}


def test_events_of_the_cell_hide_the_jobs_of_others(cell, tenant, ann, job) -> None:
    rows.a_machine(cell)
    rows.a_job(cell, rows.a_tenant("other"), "secret")
    kinds = [event["kind"] for event in ann.get("/api/v1/cells/cc/events/").json()["results"]]
    assert kinds == ["machine.set", "job.submitted"]
    sre = world.bearer(world.a_user("sre", sre=True))
    assert len(sre.get("/api/v1/cells/cc/events/").json()["results"]) == 3
