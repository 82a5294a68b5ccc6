"""Tests of joining a cell: a token admits exactly its number of machines, and wrong fields are named."""

from __future__ import annotations

import datetime as dt
import hashlib
import ssl
import threading

import pytest
from django.db import connection
from django.utils import timezone

from borglet.messages import encode
from quota.models import CellCapacity
from quota.vocabulary.errors import Forbidden, Rejected
from quota.vocabulary.permissions import Principal
from scheduling.identity import authority
from scheduling.journal import journal
from scheduling.link.transport import certificate
from scheduling.machines import last_contact
from scheduling.machines.joining import join_token_issue, machine_join, machines_join
from scheduling.machines.machines import machine_remove
from scheduling.models import JoinToken, Machine
from tests.integration import rows
from tests.integration.link_world import Played, a_join, running_link

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell():
    return rows.a_cell()


def a_token(cell, **changed) -> str:
    return join_token_issue(principal=rows.ME, cell=cell, **changed)


def test_a_machine_joins_with_all_its_facts(cell) -> None:
    answer = machine_join(a_join(a_token(cell), rack="r7", attributes={"flash": "yes"}, port_high=20009))
    machine = Machine.objects.get()
    assert (machine.hostname, machine.state, machine.rack, machine.capacity[-1]) == ("m1", "up", "r7", 10)
    assert machine.secret_digest == hashlib.sha256(answer.secret.encode()).hexdigest()
    assert (answer.cell, answer.authority) == ("cc", authority.authority_pem())
    (record,) = journal.tail(cell.id, after=0)
    assert (record.event.hostname, record.event.attributes) == ("m1", {"flash": "yes"})
    assert list(CellCapacity.objects.get(cell="cc").capacity) == machine.capacity


def test_a_token_carries_the_fingerprint_and_is_kept_as_a_hash(cell) -> None:
    token = a_token(cell)
    prefix, key, secret, fingerprint = token.split(".")
    der = ssl.PEM_cert_to_DER_cert(authority.authority_pem())
    assert (prefix, fingerprint) == ("borg1", hashlib.sha256(der).hexdigest())
    row = JoinToken.objects.get(key=key)
    assert secret not in (row.digest, row.key)


@pytest.mark.parametrize(
    ("token", "code"),
    [("nonsense", "join-token-malformed"), ("borg1.0123456789abcdef.secret." + "0" * 64, "join-token-unknown")],
)
def test_a_foreign_token_is_refused(cell, token: str, code: str) -> None:
    with pytest.raises(Rejected) as caught:
        machine_join(a_join(token))
    assert (caught.value.code, list(caught.value.fields), caught.value.status) == (code, ["token"], 403)
    assert not Machine.objects.exists()


def test_a_token_is_used_once(cell) -> None:
    token = a_token(cell)
    machine_join(a_join(token))
    before = journal.newest(cell.id)
    with pytest.raises(
        Rejected, match="the join token has 0 uses left, and this request needs 1; issue a new token"
    ) as caught:
        machine_join(a_join(token, "m2"))
    assert caught.value.code == "join-token-spent"
    assert (Machine.objects.count(), journal.newest(cell.id)) == (1, before)


def test_a_token_used_by_many_at_once_lets_in_as_many_as_it_says(cell) -> None:
    token = a_token(cell, uses=3)
    outcomes: list[str] = []

    def join(number: int) -> None:
        try:
            machine_join(a_join(token, f"m{number}"))
            outcomes.append("joined")
        except Rejected as error:
            outcomes.append(error.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=join, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == ["join-token-spent"] * 3 + ["joined"] * 3
    assert Machine.objects.count() == 3


def test_an_expired_token_is_refused(cell) -> None:
    token = a_token(cell)
    JoinToken.objects.update(expires_at=timezone.now() - dt.timedelta(seconds=1))
    with pytest.raises(Rejected) as caught:
        machine_join(a_join(token))
    assert caught.value.code == "join-token-expired"


def test_many_join_at_once_or_none(cell) -> None:
    token = a_token(cell, uses=100)
    wrong = [a_join(token, "m1"), a_join(token, "M 2", address="x"), a_join(token, "m1")]
    with pytest.raises(Rejected) as caught:
        machines_join(wrong)
    assert set(caught.value.fields) == {"[1].hostname", "[1].address", "[2].hostname"}
    assert not Machine.objects.exists()
    answers = machines_join([a_join(token, f"m{n}") for n in range(50)])
    assert [answer.hostname for answer in answers] == [f"m{n}" for n in range(50)]
    assert len({answer.secret for answer in answers}) == 50
    assert JoinToken.objects.get().uses_left == 50
    assert CellCapacity.objects.get().capacity[0] == 50 * 4000
    assert journal.newest(cell.id) == 1


def test_joining_many_takes_a_bounded_number_of_queries(cell, django_assert_max_num_queries) -> None:
    token = a_token(cell, uses=1000)
    with django_assert_max_num_queries(25):
        machines_join([a_join(token, f"m{n}") for n in range(400)])


def test_only_sres_issue_tokens_and_with_sensible_bounds(cell) -> None:
    with pytest.raises(Forbidden):
        join_token_issue(principal=Principal("eve"), cell=cell)
    with pytest.raises(Rejected) as caught:
        a_token(cell, uses=0, ttl_s=1e9)
    assert set(caught.value.fields) == {"uses", "ttl_s"}


def test_a_name_that_is_alive_can_not_be_taken_over(cell) -> None:
    with running_link() as link, link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        machine.keep_answering(lambda: last_contact.heard_within(cell.id, [Machine.objects.get().id]))
        status, problem = link.join(a_token(cell))
        assert (status, problem["code"]) == (409, "machine-live")
        assert "hostname" in problem["fields"]
        token = JoinToken.objects.order_by("-id").first()
        assert token.uses_left == 1  # rejected: nothing is used up


def test_a_machine_that_lost_its_secret_joins_again(cell) -> None:
    old = machine_join(a_join(a_token(cell)))
    machine = Machine.objects.get()
    new = machine_join(a_join(a_token(cell), rack="r2"))
    assert old.secret != new.secret
    again = Machine.objects.get()
    assert (again.id, again.rack, again.session) == (machine.id, "r2", machine.session + 1)


def test_a_removed_machine_joins_again(cell) -> None:
    machine_join(a_join(a_token(cell)))
    machine_remove(principal=rows.ME, machine=Machine.objects.get(), reason="sold")
    assert CellCapacity.objects.get().capacity[0] == 0
    machine_join(a_join(a_token(cell)))
    assert Machine.objects.get().state == "up"


def test_the_doors_over_tls(cell) -> None:
    with running_link() as link:
        assert link.request("GET", "/healthz") == (200, {"status": "ok"})
        status, pem = link.request("GET", "/authority.pem")
        assert (status, pem.decode()) == (200, authority.authority_pem())
        token = a_token(cell, uses=3)
        status, answer = link.join(token)
        assert (status, answer["hostname"]) == (200, "m1")
        body = b"[" + b",".join(encode(a_join(token, f"b{n}")) for n in range(2)) + b"]"
        status, answers = link.request("POST", "/join:bulk", body)
        assert (status, [a["hostname"] for a in answers]) == (200, ["b0", "b1"])
        status, problem = link.join(token, "m9")
        assert (status, problem["code"], list(problem["fields"])) == (403, "join-token-spent", ["token"])
        with link.dial("b1", answers[1]["secret"]) as socket:
            assert Played(socket, "b1", answers[1]["secret"]).hello().cell == "cc"


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/join", b'{"token": "t", "hostn', 422, "body"),
        ("/join", b'{"token": "t"}', 422, "hostname"),
        ("/join", b'{"token": "t", "hostname": 5}', 422, "hostname"),
        ("/join", encode(a_join("t")).replace(b'"rack"', b'"rock"'), 422, "rock"),
        ("/join:bulk", b"[]", 422, "machines"),
        ("/join:bulk", b"[" + encode(a_join("t")) + b',{"token":1}]', 422, "[1].token"),
        ("/elsewhere", b"", 404, None),
    ],
)
def test_a_request_that_does_not_parse_names_the_field(cell, path: str, body: bytes, status: int, field) -> None:
    with running_link() as link:
        answered, problem = link.request("POST", path, body)
    assert answered == status, problem
    assert list(problem.get("fields", {})) == ([field] if field else [])


class TestAuthority:
    @pytest.fixture(autouse=True)
    def home(self, settings, tmp_path):
        settings.BORG_AUTHORITY = str(tmp_path / "authority")
        return tmp_path / "authority"

    def test_it_is_made_once_and_its_key_is_private(self, home) -> None:
        path = authority.ensure_authority()
        first = path.read_bytes()
        assert authority.ensure_authority().read_bytes() == first
        assert (home / "ca.key").stat().st_mode & 0o777 == 0o600

    def test_a_lost_key_is_reported_not_replaced(self, home) -> None:
        authority.ensure_authority()
        (home / "ca.key").unlink()
        with pytest.raises(authority.AuthorityBroken, match=r"ca\.pem exists, but .*ca\.key is missing"):
            authority.ensure_authority()

    def test_a_foreign_key_is_reported(self, home) -> None:
        authority.ensure_authority()
        key = (home / "ca.key").read_bytes()
        for name in ("ca.pem", "ca.key"):
            (home / name).unlink()
        authority.ensure_authority()
        (home / "ca.key").write_bytes(key)
        with pytest.raises(authority.AuthorityBroken, match="not the key of"):
            authority.fingerprint()

    def test_a_server_certificate_is_kept_until_it_runs_out_or_a_name_is_missing(self) -> None:
        path = certificate.issue_server_certificate(["localhost", "127.0.0.1"])
        first = path.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
        assert certificate.issue_server_certificate(["localhost"]).read_bytes() == first
        now = dt.datetime.now(dt.UTC)
        soon = now + dt.timedelta(days=certificate.SERVER_DAYS - certificate.RENEW_DAYS - 1)
        assert certificate.issue_server_certificate(["localhost"], now=soon).read_bytes() == first
        late = soon + dt.timedelta(days=2)
        renewed = certificate.issue_server_certificate(["localhost"], now=late).read_bytes()
        assert renewed != first
        assert certificate.issue_server_certificate(["link.example"], now=late).read_bytes() != renewed

    def test_a_server_certificate_of_another_authority_is_replaced(self, home) -> None:
        first = certificate.issue_server_certificate(["localhost"]).read_bytes()
        for name in ("ca.pem", "ca.key"):
            (home / name).unlink()
        assert certificate.issue_server_certificate(["localhost"]).read_bytes() != first
