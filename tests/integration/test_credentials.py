"""Tests of the secrets of machines: they are replaced over the link, are revoked, and serve one machine only."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from borglet.messages import EndCause, Exit, LogChunk, Phase, Refusal, Usage
from quota.vocabulary.errors import Conflict, Forbidden
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary.events import MachineCredential
from scheduling.journal import journal, wakeups
from scheduling.link.shard import writer
from scheduling.machines import last_contact
from scheduling.machines.credentials import machine_revoke, machine_rotate, secrets_offered
from scheduling.machines.joining import join_token_issue, machine_join
from scheduling.models import Cell, Machine
from scheduling.usage import live_usage
from tests.integration import rows
from tests.integration.link_world import Link, Played, a_job, a_join, place, ran, running_link, task, until
from tests.integration.test_link_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell() -> Cell:
    return rows.a_cell()


@pytest.fixture
def link(cell):
    with running_link() as running:
        yield running


@pytest.fixture
def borglet(cell, link: Link, tmp_path: Path) -> Iterator[Borglet]:
    tmp_path.chmod(0o711)
    with contextlib.closing(Borglet(tmp_path / "home", link)) as made:
        made.start(join_token_issue(principal=rows.ME, cell=cell))
        until((made.home / "identity.json").exists, what="joined")
        until(lambda: link.shard.connections, what="connected")
        yield made


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def the_machine(hostname: str = "m1") -> Machine:
    return Machine.objects.get(hostname=hostname)


def steps(cell: Cell) -> list[str]:
    """Return the field `step` of each journal event about the secret of a machine, in order."""
    return [r.event.step for r in journal.tail(cell.id, after=0) if isinstance(r.event, MachineCredential)]


def opens(link: Link, hostname: str, secret: str) -> bool:
    try:
        with link.dial(hostname, secret):
            return True
    except InvalidStatus as error:
        if error.response.status_code != 401:
            raise
        return False


def asked_to_rotate(machine: Played):
    """Answer polls until a poll asks the machine for a new secret, and return that poll."""
    for _ in range(50):
        poll = machine.poll()
        if poll.rotate:
            return poll
        machine.report(poll)
    raise AssertionError("never asked")


def accepted(machine: Played) -> str:
    for _ in range(50):
        poll = machine.poll()
        if poll.accepted:
            return poll.accepted
        machine.report(poll)
    raise AssertionError("never accepted")


def test_a_new_secret_is_asked_for_accepted_and_used(cell, link: Link) -> None:
    with link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        machine_rotate(principal=rows.ME, machine=the_machine(), reason="a laptop was lost")
        machine_rotate(principal=rows.ME, machine=the_machine())  # requested twice, but done once
        machine.report(asked_to_rotate(machine), offer=digest("new"))
        assert accepted(machine) == digest("new")
        assert opens(link, "m1", machine.secret)  # both secrets work until the new one is used
        assert opens(link, "m1", "new")
        assert not opens(link, "m1", machine.secret)
        assert opens(link, "m1", "new")
    row = the_machine()
    assert (row.secret_digest, row.next_digest, row.rotation_asked) == (digest("new"), "", False)
    assert steps(cell) == ["asked", "offered", "renewed"]


def test_a_secret_that_is_old_enough_is_replaced_unasked(cell, link: Link) -> None:
    secret = machine_join(a_join(join_token_issue(principal=rows.ME, cell=cell))).secret
    Machine.objects.update(secret_at=dt.datetime.now(dt.UTC) - dt.timedelta(days=7))
    Cell.objects.update(settings={"rotate_secrets_s": 0.01})
    until(lambda: link.shard.roster.settings[cell.id].rotate_secrets_s == 0.01)
    with link.dial("m1", secret) as socket:
        machine = Played(socket, "m1", secret)
        machine.hello()
        machine.report(asked_to_rotate(machine), offer=digest("new"))
        assert accepted(machine) == digest("new")


def test_nobody_is_asked_before_the_time(cell, link: Link) -> None:
    with link.machine(cell) as machine:
        for _ in range(3):
            poll = machine.poll()
            assert not poll.rotate
            machine.report(poll, offer=digest("unasked"))
        assert the_machine().next_digest == ""


@pytest.mark.parametrize("offer", ["", "not a digest", "A" * 64, digest("m1")[:-1]])
def test_an_offer_that_is_none_changes_nothing(cell, offer: str) -> None:
    machine = rows.a_machine(cell, "m1")
    Machine.objects.update(secret_digest=digest("old"))
    before = journal.newest(cell.id)
    assert secrets_offered(cell.id, {machine.id: (machine.session, offer)}, principal=rows.ME) == {}
    assert (the_machine().next_digest, journal.newest(cell.id)) == ("", before)


def test_an_offer_of_a_superseded_session_changes_nothing(cell) -> None:
    machine = rows.a_machine(cell, "m1")
    Machine.objects.update(secret_digest=digest("old"), session=7)
    assert secrets_offered(cell.id, {machine.id: (6, digest("x"))}, principal=rows.ME) == {}
    assert secrets_offered(cell.id, {machine.id: (7, digest("x"))}, principal=rows.ME) == {machine.id: digest("x")}
    # After a lost answer, the same offer is accepted again, but written only once.
    before = journal.newest(cell.id)
    assert secrets_offered(cell.id, {machine.id: (7, digest("x"))}, principal=rows.ME)
    assert journal.newest(cell.id) == before


def test_secrets_are_looked_up_in_one_query_and_renewed_in_few(
    cell, django_assert_num_queries, django_assert_max_num_queries
) -> None:
    for number in range(20):
        rows.a_machine(cell, f"m{number}")
    for row in Machine.objects.all():
        row.secret_digest, row.next_digest = digest(f"old {row.hostname}"), digest(f"new {row.hostname}")
        row.save()
    asks = [(f"m{n}", f"old m{n}") for n in range(20)] + [("m1", "wrong"), ("m99", "new m99"), ("m1", "")]
    with django_assert_num_queries(1):
        found = writer.authenticate(asks, [cell.id])
    assert [known is not None for known in found] == [True] * 20 + [False] * 3
    with django_assert_max_num_queries(10):
        found = writer.authenticate([(f"m{n}", f"new m{n}") for n in range(20)], [cell.id])
    assert all(found)
    assert writer.authenticate([("m3", "old m3")], [cell.id]) == [None]


def test_a_revoked_machine_is_cut_off_until_it_joins_again(cell, link: Link) -> None:
    job = a_job(cell)
    with link.machine(cell) as machine:
        key = place(job, the_machine().id)
        machine.report(machine.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        machine.keep_answering(lambda: task(job).up)
        machine_revoke(principal=rows.ME, machine=the_machine(), reason="stolen")
        answer = machine.receive()
        while not isinstance(answer, Refusal):
            answer = machine.receive()
        assert answer.code == "superseded"
    row = the_machine()
    assert (row.state, row.secret_digest, row.reason) == ("down", "", "its secret was revoked: stolen")
    assert not opens(link, "m1", machine.secret)
    assert not opens(link, "m1", "")
    with pytest.raises(Conflict, match="join the machine again"):
        machine_rotate(principal=rows.ME, machine=row)
    late = {str(row.id): time.time()}  # a heartbeat that was sent before
    wakeups.client().zadd(last_contact.key("contact", cell.id), late)
    with link.machine(cell) as again:  # it can join at once, because no machine has its name
        again.report(again.poll_with_desired())
        assert the_machine().state == "up"
    assert steps(cell) == ["revoked"]


def test_joining_again_ends_an_offer_too(cell) -> None:
    machine_join(a_join(join_token_issue(principal=rows.ME, cell=cell)))
    Machine.objects.update(next_digest=digest("thief"), rotation_asked=True)
    machine_join(a_join(join_token_issue(principal=rows.ME, cell=cell)))
    row = the_machine()
    assert (row.next_digest, row.rotation_asked) == ("", False)
    assert row.secret_at is not None


@pytest.mark.parametrize("act", [machine_rotate, machine_revoke])
def test_only_sres_touch_secrets(cell, act) -> None:
    machine = rows.a_machine(cell, "m1")
    with pytest.raises(Forbidden):
        act(principal=Principal("eve"), machine=machine, reason="")


def test_a_real_borglet_renews_its_secret_and_its_tasks_never_notice(cell, link: Link, borglet: Borglet) -> None:
    job = a_job(cell, command=["sleep", "3600"], limit={"cpu": "100m", "ram": "64Mi"})
    place(job, the_machine().id)
    until(lambda: task(job).up)
    file = borglet.home / "identity.json"
    before = json.loads(file.read_text())
    machine_rotate(principal=rows.ME, machine=the_machine())
    until(lambda: json.loads(file.read_text())["secret"] != before["secret"])
    until(lambda: "renewed" in steps(cell))
    after = json.loads(file.read_text())
    assert (digest(after["secret"]), after["next"]) == (the_machine().secret_digest, "")
    assert not opens(link, "m1", before["secret"])
    assert (task(job).restarts, task(job).incarnation) == (0, 1)
    borglet.kill()
    borglet.start()
    session = the_machine().session
    until(lambda: the_machine().session > session)


# -- a stolen secret gives access only to the tasks of its machine


def test_a_stolen_secret_shows_nothing_of_other_machines(cell, link: Link) -> None:
    theirs = a_job(cell, "theirs", env={"PASSWORD": "secret of m2"})
    with link.machine(cell, "m2") as victim, link.machine(cell, "m1") as thief:
        key = place(theirs, the_machine("m2").id)
        victim.report(victim.poll_with_desired(lambda desired: bool(desired.run)), ran(key))
        victim.keep_answering(lambda: task(theirs).up)
        frames = []
        for _ in range(5):
            frames.append(thief.poll())
            thief.report(frames[-1], ran(key))
        assert all("secret of m2" not in repr(frame) for frame in frames)
        assert all(not frame.desired.run for frame in frames if frame.desired)


def test_a_stolen_secret_speaks_for_no_other_machine(cell, link: Link) -> None:
    with link.machine(cell, "m2") as victim:
        with link.machine(cell, "m1") as thief:
            pass
        assert not opens(link, "m2", thief.secret)
        with link.dial("m1", thief.secret) as socket:
            liar = Played(socket, "m2", thief.secret)
            answer = liar.hello()
            assert isinstance(answer, Refusal)
            assert (answer.code, answer.retry) == ("other-machine", False)
        victim.report(victim.poll_with_desired())  # its session is still open


@pytest.mark.parametrize("phase", [Phase.UP, Phase.ENDED])
def test_what_a_stolen_secret_says_of_others_tasks_is_not_believed(cell, link: Link, phase: Phase) -> None:
    theirs = a_job(cell, "theirs")
    with link.machine(cell, "m2") as victim, link.machine(cell, "m1") as thief:
        key = place(theirs, the_machine("m2").id)
        victim.report(victim.poll_with_desired(lambda desired: bool(desired.run)), ran(key, Phase.STARTING))
        victim.keep_answering(lambda: task(theirs).phase == "starting")
        exit_ = {} if phase is Phase.UP else {"exit": Exit(EndCause.EXITED, 1.0, status=1)}
        lie = ran(key, phase, restarts=9, usage=Usage(4000, 2**40, 2**40, 99), **exit_)
        thief.has(lie)
        for _ in range(3):
            thief.report(thief.poll())
        row = task(theirs)
        assert (row.state, row.phase, row.up, row.restarts) == ("running", "starting", False, 0)
        ours = the_machine("m1").id
        until(lambda: len(live_usage.read_machines(cell.id, [ours]).rows))
        assert [row["task_id"] for row in live_usage.read_machines(cell.id, [ours]).rows] == [-ours]


def test_a_stolen_secret_answers_no_request_for_the_log_of_another_machine(cell, link: Link) -> None:
    heard: list[LogChunk] = []
    link.shard.hearing.on_logs = lambda report: heard.extend(report.logs)
    with link.machine(cell, "m1") as thief:
        thief.report(thief.poll(), logs=[LogChunk("asked-of-another", 0, 3, "lie")])
        thief.report(thief.poll())
        thief.poll()
    assert heard == []


def test_the_secret_of_a_machine_is_not_a_token_of_the_api(cell, link: Link, client) -> None:
    with link.machine(cell, "m1") as machine:
        for credential in (machine.secret, f"m1:{machine.secret}"):
            answer = client.get("/api/v1/cells/", headers={"Authorization": f"Bearer {credential}"})
            assert answer.status_code == 401
