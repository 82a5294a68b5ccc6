"""Tests of `borgctl` as a process against the real API: its output, its output with `--json`, and its exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest
from django.contrib.auth import get_user_model

from quota.models import Token
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending
from scheduling.journal import journal
from scheduling.models import Job
from scheduling.tasks import departures, transitions
from scheduling.usage import usage_windows
from serving.ports import reserved
from tests.integration import cli_world, link_world, portal_server, rows, world
from tests.integration.cli_world import BORGCTL, Cli
from tests.integration.test_naming_process import Process as Resolver
from tests.integration.test_usage_history import a_window
from tests.ports import free_port

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def dns_port() -> Iterator[int]:
    """Reserve a port for a resolver that tests start, so that no other connection gets it, and yield it."""
    with reserved("127.0.0.1", 0) as port:
        yield port


@pytest.fixture(scope="module")
def url(django_db_setup, tmp_path_factory, dns_port):
    settings = {
        "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],  # above all its quick hasher
        "BORG_DNS_HOST": "127.0.0.1",
        "BORG_DNS_PORT": str(dns_port),
    }
    with portal_server.running(tmp_path_factory.mktemp("portal") / "log", **settings) as url:
        yield url


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def tenant(cell):
    tenant = rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    return tenant


@pytest.fixture
def ann(tmp_path, url, tenant) -> Cli:
    return cli_world.of(tmp_path, url, "ann", tenant=tenant)


@pytest.fixture
def sre(tmp_path, url, cell) -> Cli:
    return cli_world.of(tmp_path, url, "root", sre=True)


def test_a_job_from_its_plan_to_its_end(ann, cell) -> None:
    file = ann.file(world.a_file())
    assert ann.out("plan", file).splitlines() == [
        "Dry run: Job web, version 1: changes of its tasks: 3 start.",
        "  start           3 tasks: 0-2",
        "  Quota of band production: cpu: 0 cores used now, 0.3 cores afterwards, of 64 cores; ram: 0 B used now, 192"
        " MiB afterwards, of 256 GiB; disk: 0 B used now, 192 MiB afterwards, of 4 TiB.",
        "  Revision for --if-revision: new",
    ]
    assert ann.failing("submit", file, "--if-revision", "0123-1")[1]["code"] == "revision-changed"
    assert ann.out("submit", file, "--if-revision", "new", "--dry-run") == "cc/ubar/web would be admitted: 3 tasks.\n"
    assert not Job.objects.exists()
    assert ann.out("submit", file) == "cc/ubar/web is admitted: 3 tasks.\n"
    assert ann.out("submit", file) == "cc/ubar/web already has this spec; nothing changes.\n"
    job = Job.objects.get()
    world.bring_up(job, rows.a_machine(cell))

    head, row = ann.out("status").splitlines()
    assert (head.split()[:3], row.split()[:4]) == (["JOB", "HEALTH", "RUNNING"], ["cc/ubar/web", "healthy", "3/3", "0"])
    told = ann.out("status", "web")
    assert told.startswith("cc/ubar/web  healthy  (3 of 3 tasks running)\n")
    assert "requests  cpu 0.3, ram 192 MiB" in told
    assert " by ann" in told
    first = ann.out("tasks", "web").splitlines()[1].split()
    assert first[:6] == ["0", "running", "up", "unknown", "m1", "http=127.0.0.1:20000"]

    weighed = ann.out("plan", ann.file(world.a_file(overrides={"0": {"weight": 0}})))
    assert "change in place 1 task: 0\n" in weighed
    assert "  Task 0 has weight 0 in the choice of a task for clients, 1 until now.\n" in weighed
    file = ann.file(world.with_task(command=["other"], tasks=4))
    assert "restart         3 tasks: 0-2" in ann.out("plan", file)
    assert ann.out("update", file, "--dry-run").startswith("Dry run: Job web, version 2")
    assert ann.out("update", file).startswith(
        "Job web, version 2: changes of its tasks: 1 start, 3 restart, at most 1 down"
    )
    assert "update    version 1 to 2" in ann.out("status", "web")
    assert ann.out("undo", "web").startswith("Job web, version 3")

    assert ann.out("kill", "web", "-t", "1", "--dry-run") == "cc/ubar/web: 1 task would be killed.\n"
    assert ann.out("kill", "web", "-t", "1", "-t", "2", "--reason", "enough") == "cc/ubar/web: 2 tasks killed.\n"
    assert ann.out("why", "web/1").startswith("Task 1 of job web is dead: killed, enough.")
    # What is dead has its processes until its machine says that they are gone.
    assert [line.split()[:4] for line in ann.out("tasks", "web").splitlines()[2:4]] == [
        ["1", "dead", "stopping", "m1"],
        ["2", "dead", "stopping", "m1"],
    ]
    with journal.write(cell.id, rows.ME) as entry:
        departures.tasks_gone(entry, [(task_id(job.id, 1), 1, None)])
    gone, stopping = [row["stopping"] for row in ann.json("tasks", "web") if row["index"] in (1, 2)]
    assert gone == []
    assert [(one["machine"], one["incarnation"], one["cause"]) for one in stopping] == [("m1", 1, "kill")]
    ann.out("kill", "web")
    assert ann.out("kill", "web") == "cc/ubar/web: 0 tasks killed.\n"
    assert ann.out("wait", "web", "--for", "done") == "cc/ubar/web: the job has ended (killed).\n"
    assert "ended " in ann.out("status", "web")


def test_actions_that_need_no_job_file(ann, cell) -> None:
    ann.out("submit", ann.file(world.a_file()))
    job = Job.objects.get()
    world.bring_up(job, rows.a_machine(cell))
    assert ann.out("scale", "web", "2", "--dry-run").startswith("Dry run: Job web, version 2")
    assert "stop            1 task: 2" in ann.out("scale", "web", "2")
    assert ann.failing("scale", "web", "3", "--if-revision", "0-1")[1]["code"] == "revision-changed"
    assert ann.out("restart", "web", "--tasks", "0-1") == (
        "cc/ubar/web: 2 tasks will be restarted, at most 1 down at once.\n"
    )
    assert ann.out("pause", "web") == "cc/ubar/web: the restart is paused.\n"
    assert "update    restart of 2 tasks, paused" in ann.out("status", "web")
    assert ann.out("resume", "web") == "cc/ubar/web: the restart is resumed.\n"
    assert ann.failing("retry", "web")[1]["code"] == "nothing-to-retry"
    assert "1 task will be restarted" in ann.out("restart", "web"), "it replaces the open restart"
    assert "tasks" in ann.failing("restart", "web", "--tasks", "")[1]["fields"]
    ann.out("kill", "web", "-t", "1")
    assert ann.out("retry", "web/1", "--dry-run") == "cc/ubar/web: 1 task would run again.\n"
    assert ann.out("retry", "web", "--tasks", "1") == "cc/ubar/web: 1 task will run again.\n"
    head, row = ann.out("fit", ann.file(world.a_file())).splitlines()
    assert (head.split(), row.split()[:4]) == (
        ["CELL", "FIT", "NOW", "WANTED", "MACHINES", "DETAIL"],
        ["cc", "–", "3", "–"],
    )


def test_why_shows_the_score_and_what_else_was_considered(ann, cell) -> None:
    ann.out("submit", ann.file(world.a_file()))
    job = Job.objects.get()
    machines = [rows.a_machine(cell, name) for name in ("m1", "m2")]
    with journal.write(cell.id, rows.ME) as entry:
        placed = Assignment(
            job.id,
            0,
            machines[0].id,
            (20_000,),
            score={"packing": -0.25, "mixing": -0.01},
            runners_up=((machines[1].id, -0.3),),
        )
        transitions.tasks_place(entry, [placed])
    lines = ann.out("why", "web/0").splitlines()
    assert [line.split() for line in lines[-6:]] == [
        ["SCORE", "COMPONENT", "m1"],
        ["packing", "-0.250"],
        ["mixing", "-0.010"],
        ["total", "-0.260"],
        ["RUNNER-UP", "TOTAL", "SCORE"],
        ["m2", "-0.300"],
    ]


def test_json_is_what_the_api_answers(ann, cell) -> None:
    file = ann.file(world.a_file())
    assert ann.json("plan", file)["dry_run"] is True
    assert ann.json("submit", file)["outcome"] == "submitted"
    assert ann.json("submit", file)["outcome"] == "unchanged"
    assert ann.json("update", ann.file(world.a_file(tasks=2)))["tasks"]["removed"] == 1
    assert ann.json("undo", "web")["version"] == 3
    assert ann.json("status")[0]["name"] == "web"
    assert ann.json("status", "ubar/web")["spec"]["tasks"] == 3
    assert len(ann.json("tasks", "web")) == 3
    assert ann.json("tasks", "web", "--state", "dead") == []
    assert ann.json("why", "web")["state"] == "pending"
    assert ann.json("why", "web/0")["state"] == "pending"
    assert ann.json("events", "web")[-1]["kind"] == "job.submitted"
    assert ann.json("cells")[0]["name"] == "cc"
    assert ann.json("machines") == []
    assert ann.json("quota", "list")[0]["used"]["cpu"] == 300
    assert ann.json("resolve", "web")["tasks"] == 3
    assert ann.json("tokens", "list")[0]["name"] == "cli"
    assert ann.json("kill", "web") == {"killed": 3, "dry_run": False}


def test_the_three_languages_and_standard_input(ann, cell) -> None:
    yaml = "name: y\ntask:\n  command: [sleep, '1']\n  restart: {on: never}\n"
    ann.out("submit", ann.file(yaml, "y.yaml"))
    assert ann.json("status", "y")["spec"]["task"]["restart"]["on"] == "never"
    ann.out("submit", ann.file("(import 'borg.libsonnet').job('j') { task+: {command: ['x']} }", "j.jsonnet"))
    assert ann.out("submit", "-", given=yaml.replace("y", "z", 1)) == "cc/ubar/z is admitted: 1 task.\n"
    assert {job["name"] for job in ann.json("status")} == {"y", "j", "z"}


@pytest.mark.parametrize(
    "change, code, told",
    [
        ({"tasks": -1}, "invalid-spec", "tasks: -1 tasks are not possible; give 1 to"),
        ({"taks": 3}, "invalid-spec", "taks: unknown field; did you mean 'tasks'?"),
        ({"name": "We_b"}, "invalid-spec", "name: 'We_b' is not a DNS label"),
        ({"name": None}, "invalid-spec", "name: is missing"),
        ({"name": "a/b"}, "invalid-spec", "name: 'a/b' is not a DNS label"),
        ({"tenant": 5}, "invalid-spec", "tenant: 5 is not a string"),
        ({"tenant": "other"}, "not-found", "no tenant 'other'"),
        ({"cell": "zz"}, "not-found", "no cell 'zz'; give one of cc"),
        ({"task": {"command": ["x"], "limit": {"cpu": 65}}}, "quota-exceeded", "short"),
        ({"task": {"command": ["x"], "limit": {"cpu": "-1"}}}, "invalid-spec", "task.limit.cpu"),
        ({"task": {"command": ["a", "$(port.web)"]}}, "invalid-spec", "task.command[1]: $(port.web) is not a"),
        ({"task": {"command": ["a\0b"]}}, "invalid-spec", "task.command[0]: contains a NUL character"),
    ],
)
def test_a_refusal_names_the_field_ends_with_1_and_changes_nothing(ann, cell, change, code, told) -> None:
    file = ann.file(world.a_file(**change))
    sentence, document = ann.failing("submit", file)
    assert (document["code"], told in sentence) == (code, True), sentence
    if code == "quota-exceeded":
        assert "the missing quota cannot be bought: " in sentence
        planned, plan = ann.failing("plan", file)
        assert (plan["problem"]["code"], planned.startswith("borgctl: cc/ubar/web would be rejected:")) == (code, True)
    else:
        assert ann.failing("plan", file)[1]["code"] == code
        assert journal.newest(cell.id) == 0
    assert ann.failing("update", file)[1]["code"] in (code, "not-found")
    assert not Job.objects.exists()


def test_several_wrong_fields_are_each_told(ann, cell) -> None:
    sentence, document = ann.failing("submit", ann.file(world.a_file(tasks=0, kind="Pod", labels={"a": 1})))
    assert set(document["fields"]) == {"tasks", "kind", "labels.a"}
    assert all(field in sentence for field in document["fields"])


def test_a_file_that_does_not_parse_names_the_line(ann, cell) -> None:
    for name, text, place in (
        ("a.yaml", "name: web\ntask: [", "a.yaml:2:8"),
        ("a.json", '{"name":\n', "a.json:2:1"),
        ("a.jsonnet", "{\n  name 1\n}", "a.jsonnet:2:"),
    ):
        sentence, document = ann.failing("submit", ann.file(text, name))
        assert (document["code"], place in sentence) == ("bad-file", True), sentence


def test_what_is_not_there_is_reported(ann, sre, cell) -> None:
    missing = [[verb, "none"] for verb in ("status", "tasks", "why", "undo", "kill", "resolve", "events", "wait")]
    missing += [["logs", "none/0"], ["status", "zz/ubar/web"], ["machines", "--cell", "zz"], ["machine", "show", "m9"]]
    for words in missing:
        sentence, document = ann.failing(*words)
        assert document["code"] == "not-found", sentence
    ann.out("submit", ann.file(world.a_file()))
    assert ann.failing("undo", "web")[1]["code"] == "nothing-to-undo"
    assert ann.failing("kill", "web", "-t", "9")[1]["code"] == "no-such-task"
    assert ann.failing("why", "web/9")[1]["code"] == "not-found"
    assert ann.failing("logs", "web/0")[1]["code"] == "no-log"
    assert ann.failing("status", "--state", "asleep")[1]["code"] == "invalid"
    assert ann.failing("machine", "drain", "m1", "--reason", "x")[1]["code"] == "not-found"
    rows.a_machine(cell)
    assert ann.failing("machine", "drain", "m1", "--reason", "x")[1]["code"] == "forbidden"
    assert ann.failing("machine", "join-token")[1]["code"] == "forbidden"
    assert sre.failing("machine", "join-token", "--uses", "99999999")[1]["fields"].keys() == {"uses"}


def test_without_a_good_token_the_way_to_one_is_reported(ann, cell) -> None:
    for token in ("", "borg_x_y"):
        ann.environment["BORG_TOKEN"] = token
        sentence, document = ann.failing("cells")
        assert ("borgctl login" in sentence, document["status"]) == (True, 401)


def test_machines_are_shown_drained_and_joined(ann, sre, cell) -> None:
    assert ann.out("machines") == "No machines. Add one with `borgctl machine join-token`.\n"
    rows.a_machine(cell)
    assert ann.out("machines").splitlines()[1].split()[:6] == ["m1", "up", "0", "127.0.0.1", "r1", "64"]
    shown = ann.out("machine", "show", "m1")
    assert re.search(r"^capacity +cpu 64, ram 256 GiB, disk 4 TiB, ports 10,000$", shown, re.M), shown
    assert sre.out("machine", "drain", "m1", "--reason", "new disk") == "m1 is draining.\n"
    assert "new disk" in ann.out("machines", "--state", "draining")
    assert sre.json("machine", "undrain", "m1", "--cell", "cc")["state"] == "up"
    grown = sre.out("machine", "grow", "m1", "--cpu", "96", "--ram", "512Gi")
    assert grown == "m1 now has the capacity cpu 96, ram 512 GiB, disk 4 TiB, ports 10,000.\n"
    assert sre.failing("machine", "grow", "m1", status=2)[1]["fields"].keys() == {"capacity"}
    assert sre.failing("machine", "grow", "m1", "--cpu", "lots")[1]["fields"].keys() == {"capacity"}
    assert sre.out("machine", "join-token", "--uses", "2", "--ttl", "60").startswith("borg1.")
    kinds = [line.split()[4] for line in sre.out("events").splitlines()[1:]]
    assert kinds == ["machine.set", "machine.state", "machine.state", "machine.set"]
    assert "m1" in sre.out("events", "--limit", "1")


def test_a_machine_gets_a_new_secret_or_is_cut_off(sre, ann, cell) -> None:
    rows.a_machine(cell, "m1")
    assert sre.out("machine", "rotate", "m1") == "m1 is given a new secret.\n"
    assert sre.out("machine", "revoke", "m1", "--reason", "x", "--dry-run").startswith("m1 would be disconnected")
    assert sre.out("machine", "revoke", "m1", "--reason", "stolen").startswith("m1 is disconnected")
    assert sre.failing("machine", "rotate", "m1")[1]["code"] == "secret-revoked"
    assert ann.failing("machine", "revoke", "m1", "--reason", "x")[1]["code"] == "forbidden"


def test_what_a_task_used_is_shown(ann, cell) -> None:
    job = link_world.a_job(cell)
    key = link_world.place(job, rows.a_machine(cell).id)
    assert "No usage yet" in ann.out("usage", "ubar/jfoo/0")
    identity = task_id(job.id, 0)
    usage_windows.store([usage_windows.TaskWindow(cell.id, 1, identity, a_window(key, ago=ago)) for ago in (0, 1)])
    first, second = ann.out("usage", "ubar/jfoo/0").splitlines()[1:]
    assert "0.25" in first
    assert "64 MiB" in second
    assert [row["threads"] for row in ann.json("usage", "ubar/jfoo/0")] == [3, 3]


def test_lists_longer_than_a_page_are_whole_and_limits_hold(ann, cell) -> None:
    ann.out("submit", ann.file(world.a_file(tasks=230)))
    assert [task["index"] for task in ann.json("tasks", "web")] == list(range(230))
    world.bring_up(Job.objects.get(), rows.a_machine(cell))
    assert len(ann.json("events", "web", "--limit", "150")) == 150
    assert len(ann.json("events", "web", "--limit", "3")) == 3
    assert len(ann.json("events", "--limit", "1001")) == 462
    assert len(ann.out("events", "web").splitlines()) == 51


def test_a_name_is_resolved_to_addresses(ann, cell) -> None:
    ann.out("submit", ann.file(world.a_file()))
    assert ann.out("resolve", "web").startswith("No task has an address now.")
    world.bring_up(Job.objects.get(), rows.a_machine(cell))
    table = ann.out("resolve", "/bns/cc/ubar/web/").splitlines()
    assert table[1].split() == [
        "/bns/cc/ubar/web/0",
        "0.web.ubar.cc.borg.internal",
        "127.0.0.1",
        "http=20000",
        "yes",
        "unknown",
        "1",
        "-",
        "5s",
        "up",
        "m1",
    ]
    assert ann.out("resolve", "web/2").splitlines()[1].split()[3] == "http=20002"
    world.report(Job.objects.get(), 0, 1, 2, up=False)
    assert ann.out("resolve", "web").startswith("No task is serving. The list shows all tasks that have an address.\n")


def test_waiting_ends_when_all_tasks_are_up(ann, cell) -> None:
    ann.out("submit", ann.file(world.a_file()))
    sentence, document = ann.failing("wait", "web", "--timeout", "0.2")
    assert document["code"] == "timeout"
    assert "is not running after 0.2 s: 0 of 3 tasks running, 3 pending" in sentence
    waiting = subprocess.Popen([BORGCTL, "wait", "web"], env=ann.environment, stdout=subprocess.PIPE, text=True)
    machine, job = rows.a_machine(cell), Job.objects.get()
    world.place(job, machine, 0, 1, 2)
    world.report(job, 0, 1)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.7)
    world.report(job, 2)
    assert waiting.communicate(timeout=20)[0] == "cc/ubar/web: 3 of 3 tasks running.\n"
    assert waiting.returncode == 0


def test_waiting_for_an_end_tells_a_failure_from_a_success(ann, cell) -> None:
    for name, how in (("bad", "failed"), ("good", "finished")):
        ann.out("submit", ann.file(world.a_file(name, tasks=1)))
        job = Job.objects.get(name=name)
        with journal.write(cell.id, rows.ME) as entry:
            transitions.tasks_end(entry, [Ending(task_id(job.id, 0), how)])
    sentence, document = ann.failing("wait", "bad", "--for", "done")
    assert (document["code"], "`borgctl why cc/ubar/bad`" in sentence) == ("job-failed", True)
    assert ann.json("wait", "good", "--for", "done")["outcome"] == "finished"
    sentence, document = ann.failing("wait", "good")
    assert (document["code"], "has ended (finished)" in sentence) == ("job-ended", True)


def test_waiting_for_names_asks_the_resolver_how_far_they_are(ann, cell, dns_port) -> None:
    ann.out("submit", ann.file(world.a_file(tasks=1)))
    world.bring_up(Job.objects.get(), rows.a_machine(cell))
    sentence, document = ann.failing("wait", "web", "--for", "visible", "--timeout", "4")
    assert (document["code"], "resolver" in sentence) == ("timeout", True), sentence
    resolver = Resolver(dns_port)
    try:
        assert ann.out("wait", "web", "--for", "visible", "--timeout", "30") == "cc/ubar/web: 1 of 1 task running.\n"
    finally:
        assert resolver.stop() == 0


def test_waiting_outlives_a_portal_that_is_away(tmp_path, tenant, cell) -> None:
    log = tmp_path / "log"
    port = free_port()
    with portal_server.running(log, port=port) as url:
        ann = cli_world.of(tmp_path, url, "ann", tenant=tenant)
        ann.out("submit", ann.file(world.a_file(tasks=1)))
        waiting = subprocess.Popen(
            [BORGCTL, "wait", "web", "--json"], env=ann.environment, stdout=subprocess.PIPE, text=True
        )
        link_world.until(lambda: _is_connected(waiting), what="borgctl has asked the portal")
    assert waiting.poll() is None
    world.bring_up(Job.objects.get(), rows.a_machine(cell))
    with portal_server.running(log, port=port):
        assert json.loads(waiting.communicate(timeout=30)[0])["tasks_up"] == 1


def test_sign_in_makes_a_profile_and_tokens_come_and_go(tmp_path, url, tenant, cell) -> None:
    user = world.a_user("bob", tenant=tenant)
    user.set_password("correct horse battery")
    user.save()
    bob = Cli(tmp_path, url)
    for name in ("BORG_URL", "BORG_CELL", "BORG_TENANT"):
        del bob.environment[name]
    login = ["login", "--url", url + "/", "--user", "bob", "--password-stdin"]
    assert bob.failing(*login, given="wrong\n")[1]["code"] == "authentication-failed"
    assert not (tmp_path / "client.toml").exists()
    assert "Profile bob is in" in bob.out(*login, given="correct horse battery\n")
    assert (tmp_path / "client.toml").stat().st_mode & 0o777 == 0o600
    bob.out("submit", bob.file(world.a_file()))  # cell and tenant are the only ones there are
    assert bob.json("status", "web")["submitted_by"] == "bob"
    signed_in = json.loads(
        bob.out(*login, "--profile", "two", "--tenant", "ubar", "--json", given="correct horse battery")
    )
    assert (signed_in["profile"], signed_in["cell"], signed_in["token"]["tenant"]) == ("two", "cc", "ubar")
    assert "secret" not in json.dumps(signed_in)
    assert len(bob.out("tokens", "list", "--profile", "bob").splitlines()) == 3

    assert "borgctl login --admin" in bob.failing("tokens", "issue", "ci")[0]
    bob.out(*login, "--admin", given="correct horse battery")
    assert bob.out("sessions", "list") == "No sessions.\n"
    assert bob.out("sessions", "end", "--all", "--yes") == "Ended sessions: 0.\n"
    assert "no session '7'" in bob.failing("sessions", "end", "7")[0]
    secret = bob.out("tokens", "issue", "ci", "--scope", "read", "--tenant", "ubar").strip()
    with_it = {**bob.environment, "BORG_TOKEN": secret}
    reader = Cli(tmp_path, url, **with_it)
    assert reader.json("status")[0]["name"] == "web"
    assert reader.failing("kill", "web")[1]["code"] == "forbidden"
    assert bob.failing("tokens", "issue", "x", "--scope", "all")[1]["fields"].keys() == {"scopes"}
    assert bob.failing("tokens", "issue", "x", "--expires", "soon")[1]["fields"].keys() == {"expires_at"}
    before = (tmp_path / "client.toml").read_text()
    assert "Profile bob in" in bob.out("tokens", "rotate", "--overlap", "1", "--profile", "bob")
    assert (tmp_path / "client.toml").read_text() != before
    assert bob.json("status", "--profile", "bob")[0]["name"] == "web"
    secret = reader.out("tokens", "rotate", "--overlap", "0").strip()  # $BORG_TOKEN is not in the file of profiles
    assert "expired" in reader.failing("status")[0]
    reader.environment["BORG_TOKEN"] = secret
    key = secret.split("_")[1]
    lines = bob.out("tokens", "list").splitlines()
    assert key in [line.split()[0] for line in lines]
    assert Token.objects.get(key=key).parent.name.startswith("borgctl on")
    replaced = Token.objects.get(successor__key=key).key
    assert f"Token {key}, which replaced it" in bob.out("tokens", "revoke", replaced, "--profile", "bob")
    assert bob.out("tokens", "revoke", key, "--profile", "bob") == f"Token {key} is revoked.\n"
    assert "revoked" in reader.failing("status")[0]
    assert get_user_model().objects.get(username="bob").pk == Token.objects.get(key=key).user_id


def test_output_that_nobody_reads_or_can_keep(ann, cell) -> None:
    ann.out("submit", ann.file(world.a_file(tasks=400)))
    script = f"{BORGCTL} tasks web --json | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    assert _bash(ann, script) == ("0\n", "")
    assert _bash(ann, f"{BORGCTL} cells | true; echo ${{PIPESTATUS[0]}}") == ("0\n", "")
    assert _bash(ann, f"{BORGCTL} cells >&-; echo $?") == ("0\n", "")
    out, err = _bash(ann, f"{BORGCTL} tasks web > /dev/full; echo $?")
    assert (out, err) == (
        "1\n",
        "borgctl: cannot write to standard output: No space left on device; write to another file\n",
    )
    out, err = _bash(ann, f"{BORGCTL} status nothing --json > /dev/full; echo $?")
    assert (out, "cannot write to standard output" in err) == ("1\n", True)


def test_ctrl_c_ends_a_wait_with_130_and_no_traceback(ann, cell) -> None:
    ann.out("submit", ann.file(world.a_file()))
    with cli_world.started(ann, "wait", "web") as waiting:
        # Not while Python starts, which may lose the signal.
        link_world.until(lambda: _is_connected(waiting), what="borgctl has asked the portal")
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=20)
    assert (waiting.returncode, out, "Traceback" in err) == (130, "", False)


def _is_connected(borgctl: subprocess.Popen[str]) -> bool:
    """Return whether the process has a connection, which it keeps for its next request."""
    return any(one.status == psutil.CONN_ESTABLISHED for one in psutil.Process(borgctl.pid).net_connections("tcp"))


def _bash(person: Cli, script: str) -> tuple[str, str]:
    done = subprocess.run(
        ["bash", "-c", script], env=person.environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout, done.stderr
