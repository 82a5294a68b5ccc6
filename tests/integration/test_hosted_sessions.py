"""Tests of simulator sessions that the console hosts, with their real processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from django.test import Client

from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from scheduling.hosting import sessions
from scheduling.simulator.__main__ import main
from tests.integration import world as people

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300)]


@pytest.fixture
def home(settings, tmp_path_factory) -> Path:
    settings.BORG_HOME = tmp_path_factory.mktemp("h")
    return settings.BORG_HOME


def ready(principal, name: str) -> sessions.HostedSession:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        found = next(one for one in sessions.sessions_of(principal) if one.name == name)
        if found.state != "opening":
            return found
        time.sleep(0.1)
    raise AssertionError("the session does not open")


def test_the_page_opens_a_session_runs_it_compares_branches_and_closes_it(home: Path) -> None:
    sre = Client()
    sre.force_login(people.a_user("sre", sre=True))
    first = sre.get("/admin/simulator/")
    assert first.status_code == 200
    assert "a randomly generated cell" in first.content.decode()

    def post(status: int = 200, **fields: str) -> str:
        answer = sre.post("/admin/simulator/", {"session": "first", **fields})
        text = answer.content.decode()
        assert answer.status_code == status, text[-3000:]
        return text

    assert "is neither a revision nor a time" in post(422, do="open", source="drawn:", moment="yesterday")
    assert "is not a finite number" in post(422, do="run", hours="nan")
    assert "opening" in post(do="open", source="drawn:")
    principal = people.principal("sre")
    session = ready(principal, "first")
    assert session.state == "ready", session.problem
    assert "is open already" in post(422, do="open", source="drawn:")
    assert "Hour 0.1000" in post(do="run", hours="0.1")
    assert "tasks running" in sre.get("/admin/simulator/?session=first").content.decode()
    post(do="branch", name="tight", set="reclamation=aggressive")
    assert "TIGHT".capitalize() in post(do="diff", first="main", second="tight")
    assert "fit into the free capacity" in post(do="ask", question="fit", cpu="2")
    assert "a comparison is incomplete" in post(422, do="until", condition="pending >")
    other = people.principal("other-sre", sre=True)
    assert sessions.sessions_of(other) == []
    with pytest.raises(NotFound):
        sessions.session_ask(principal=other, name="first", request={"do": "show"})
    with pytest.raises(NotFound):
        sessions.session_close(principal=other, name="../first")
    post(do="close")
    assert sessions.sessions_of(principal) == []
    assert not Path("/proc", str(session.pid), "cmdline").exists() or not _cmdline(session.pid)


def _cmdline(pid: int) -> bytes:
    return Path("/proc", str(pid), "cmdline").read_bytes()


def test_the_number_of_sessions_is_limited_and_failures_are_shown(home: Path, monkeypatch) -> None:
    principal = people.principal("sre", sre=True)
    monkeypatch.setattr(sessions, "MEMORY_MIB", 60)
    sessions.session_open(principal=principal, name="small", cell=None)
    ended = ready(principal, "small")
    assert ended.state == "ended"
    assert ended.problem
    with pytest.raises(Conflict, match="did not answer"):
        sessions.session_ask(principal=principal, name="small", request={"do": "show"})
    monkeypatch.setattr(sessions, "MOST_PER_PERSON", 0)
    with pytest.raises(Conflict, match="close a session first"):
        sessions.session_open(principal=principal, name="more", cell=None)
    with pytest.raises(Rejected, match="lower-case letters"):
        sessions.session_open(principal=principal, name="../up", cell=None)
    with pytest.raises(Forbidden):
        sessions.session_open(principal=people.principal("ann"), name="mine", cell=None)
    sessions.session_close(principal=principal, name="small")


def test_a_session_is_counted_while_it_opens_and_leaves_nothing_if_it_fails(home: Path, monkeypatch) -> None:
    principal = people.principal("sre", sre=True)

    def starts(*_: object, **__: object) -> int:
        (opening,) = sessions.sessions_of(principal)
        assert (opening.state, opening.pid) == ("opening", 0)
        with pytest.raises(Conflict, match="is open already"):
            sessions.session_open(principal=principal, name="first", cell=None)
        with pytest.raises(Conflict, match="is still opening"):
            sessions.session_close(principal=principal, name="first")
        monkeypatch.setattr(sessions, "_OPENS_WITHIN_S", -1.0)
        assert sessions.sessions_of(principal)[0].problem.startswith("it was interrupted")
        raise OSError("no space left")

    monkeypatch.setattr(sessions, "_start", starts)
    with pytest.raises(OSError, match="no space left"):
        sessions.session_open(principal=principal, name="first", cell=None)
    assert list(home.glob("faux/*/*")) == []


def test_the_process_deletes_its_checkpoint(tmp_path: Path, capsys) -> None:
    file = tmp_path / "cell.checkpoint"
    file.write_bytes(b"not a checkpoint")
    assert main(["checkpoint", str(tmp_path), "--data", str(file), "--delete-data"]) == 1
    assert capsys.readouterr().err
    assert not file.exists()
