"""Tests of joining a cell over TLS: the authority that is trusted, what is stored, and errors that are reported."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from borglet.fleet import join_fleet, load_secrets
from borglet.identity.join import JoinFailed, LinkUnreachable, join_cell, parse_token
from borglet.identity.saved_state import DiskStore
from borglet.machine_specs import BadMachine, uniform_fleet
from borglet.messages import JoinRequest
from tests.real.borglet.cell import Authority, join_server


def request(token: str, hostname: str = "m1") -> JoinRequest:
    return JoinRequest(token=token, hostname=hostname, address="127.0.0.1", capacity={"cpu": 1000})


def test_a_machine_joins_and_keeps_its_secret_to_itself(tmp_path: Path, authority: Authority) -> None:
    store = DiskStore(tmp_path / "home")
    with join_server(authority) as link:
        identity = join_cell(store, link.url, request(authority.token()))
        assert (identity.cell, identity.secret) == ("aa", "of-m1")
        assert "of-m1" not in repr(identity)
        assert store.identity() == identity
        assert store.authority() == authority.pem
        assert stat.S_IMODE((tmp_path / "home" / "identity.json").stat().st_mode) == 0o600
        assert join_cell(store, link.url, request("", "m1")) == identity
        assert len(link.requests) == 1, "a home that has joined does not join again"


def test_a_home_of_another_machine_is_refused(tmp_path: Path, authority: Authority) -> None:
    store = DiskStore(tmp_path)
    with join_server(authority) as link:
        join_cell(store, link.url, request(authority.token()))
        with pytest.raises(
            JoinFailed, match="hostname: the directory of --home belongs to machine 'm1' of cell 'aa', not to 'm2'"
        ):
            join_cell(store, link.url, request(authority.token(), "m2"))


def test_an_authority_the_token_does_not_name_never_sees_the_token(
    tmp_path: Path, authority: Authority, other_authority: Authority
) -> None:
    with join_server(other_authority) as link:
        with pytest.raises(JoinFailed, match=f"has the authority {other_authority.fingerprint}, and the token expects"):
            join_cell(DiskStore(tmp_path), link.url, request(authority.token()))
        assert link.paths == ["/authority.pem"]
    assert DiskStore(tmp_path).identity() is None


def test_a_server_that_shows_the_right_authority_without_its_signature_never_sees_the_token(
    tmp_path: Path, authority: Authority, other_authority: Authority
) -> None:
    with join_server(other_authority, shown=authority) as link:
        with pytest.raises(JoinFailed, match="has no certificate of the cell's authority"):
            join_cell(DiskStore(tmp_path), link.url, request(authority.token()))
        assert link.requests == []


def test_a_problem_of_the_server_reaches_the_person_with_its_fields(tmp_path: Path, authority: Authority) -> None:
    with join_server(authority) as link:
        link.problem = (
            409,
            {"code": "token-spent", "detail": "This token was used by m7.", "fields": {"token": ["make a new one"]}},
        )
        with pytest.raises(JoinFailed, match=r"409.*token-spent: This token was used by m7.*make a new one"):
            join_cell(DiskStore(tmp_path), link.url, request(authority.token()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "borg1.a.b", "borg2.a.b." + "0" * 64, "borg1.a.b." + "0" * 63])
def test_a_damaged_token_is_named(text: str) -> None:
    with pytest.raises(JoinFailed, match="join token: it must have the form borg1"):
        parse_token(text)


def test_without_a_token_and_without_a_link_the_reason_is_reported(tmp_path: Path, authority: Authority) -> None:
    with pytest.raises(JoinFailed, match="has not joined a cell yet; give --join-token"):
        join_cell(DiskStore(tmp_path), "https://127.0.0.1:1", request(""))
    with pytest.raises(LinkUnreachable, match="cannot reach"):
        join_cell(DiskStore(tmp_path), "https://127.0.0.1:1", request(authority.token()))
    with pytest.raises(BadMachine, match="give https://host:port"):
        join_cell(DiskStore(tmp_path), "127.0.0.1:1", request(authority.token()))


def test_a_fleet_joins_by_the_hundred_on_one_connection_and_only_once(tmp_path: Path, authority: Authority) -> None:
    machines = uniform_fleet(1200, {"cpu": 1000, "ram": 2**30})
    with join_server(authority) as link:
        secrets = join_fleet(tmp_path, link.url, authority.token(), machines, ports=(20000, 20999))
        assert [path for path in link.paths if path != "/authority.pem"] == ["/join:bulk"] * 3
        assert len(link.connections) == 1
        assert (len(secrets.secrets), secrets.secrets["sim-01199"]) == (1200, "of-sim-01199")
        assert {one.port_high for one in link.requests} == {20999}
        again = join_fleet(tmp_path, link.url, "", machines, ports=(20000, 20999))
        assert (again.secrets, len(link.requests)) == (secrets.secrets, 1200)
    assert load_secrets(tmp_path).secrets == secrets.secrets
    assert stat.S_IMODE((tmp_path / "fleet.json").stat().st_mode) == 0o600
