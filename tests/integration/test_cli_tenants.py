"""Tests of `borgctl tenant`: teams, members, invitations, service accounts and capabilities, against a real portal."""

from __future__ import annotations

import pytest

from quota.models import Membership, ServiceAccount, Tenant
from quota.vocabulary.permissions import Role
from tests.integration import cli_world, rows, world
from tests.integration.cli_world import Cli

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ubar() -> Tenant:
    rows.a_cell()
    return rows.a_tenant("ubar")


@pytest.fixture
def ann(tmp_path, shared_portal, ubar) -> Cli:
    return cli_world.of(tmp_path, shared_portal, "ann", tenant=ubar)


@pytest.fixture
def sre(tmp_path, shared_portal) -> Cli:
    return cli_world.of(tmp_path, shared_portal, "root", sre=True)


def test_an_owner_makes_a_team_and_its_members(ann, sre, ubar) -> None:
    world.a_user("kim")
    told = ann.out("tenant", "create", "ubar-search", "--title", "Search", "--dry-run")
    assert told == "Tenant ubar-search would be created below ubar.\n"
    assert not Tenant.objects.filter(name="ubar-search").exists()
    assert ann.json("tenant", "create", "ubar-search", "--title", "Search")["parent"] == "ubar"
    assert ann.out("tenant", "list", "--below", "ubar").splitlines()[1].split()[:3] == ["ubar-search", "Search", "ubar"]

    team = ("--tenant", "ubar-search")
    for name in ("kim", "nobody"):
        told = ann.run("tenant", "add", name, *team)
        assert told.returncode == 1
        assert "borgctl tenant invite" in told.stderr, told.stderr
    assert sre.out("tenant", "add", "kim", *team) == "kim is viewer of ubar-search.\n"
    again = ann.run("tenant", "add", "kim", "--role", "owner", *team)
    assert (
        again.returncode,
        "kim is already a member of ubar-search with role viewer; use `borgctl tenant role` to change it"
        in again.stderr,
    ) == (1, True)
    assert ann.out("tenant", "role", "kim", "operator", *team) == "kim is operator of ubar-search.\n"
    assert Membership.objects.get(user__username="kim").role == Role.OPERATOR
    assert "borgctl tenant invite" in ann.run("tenant", "role", "nobody", "viewer", *team).stderr
    shown = ann.out("tenant", "show")
    assert "  teams         ubar-search; 10 at most" in shown
    assert shown.splitlines()[-1].split() == ["ann", "owner", "person"]
    assert [one["user"] for one in ann.json("tenant", "members", *team)] == ["kim"]
    assert ann.json("tenant", "remove", "kim", *team) == {"removed": True}
    assert not Membership.objects.filter(user__username="kim").exists()

    assert ann.out("tenant", "set", "--time-zone", "Europe/Zurich", *team).endswith("has time zone 'Europe/Zurich'.\n")
    changed = Tenant.objects.get(name="ubar-search")
    assert (changed.title, changed.time_zone) == ("Search", "Europe/Zurich")
    assert "ask an SRE" in ann.run("tenant", "move", "ubar-search", "--alone").stderr
    assert sre.out("tenant", "move", "ubar-search", "--alone") == "Tenant ubar-search is on its own now.\n"


def test_people_are_invited_and_programs_have_accounts(ann, ubar) -> None:
    told = ann.out("tenant", "invite", "kim@example.com", "--role", "operator").splitlines()
    assert told[0].startswith("kim@example.com is invited to ubar as operator; the mail ")
    assert "/invitations/" in told[1]
    (row,) = ann.json("tenant", "invitations")
    assert (row["email"], row["state"]) == ("kim@example.com", "open")
    assert ann.out("tenant", "withdraw", row["key"]) == "The invitation for kim@example.com is withdrawn.\n"
    assert ann.out("tenant", "invitations").splitlines()[1].split()[3] == "withdrawn"
    assert "email: " in ann.run("tenant", "invite", "nobody").stderr

    account = ("tenant", "service-account")
    made = ann.json(*account, "add", "deploy", "--description", "releases")
    assert (made["name"], made["role"]) == ("deploy", "operator")
    (secret,) = ann.out(*account, "token", "deploy", "--name", "ci", "--scope", "read").split()
    robot = Cli(ann.folder, ann.environment["BORG_URL"], BORG_TOKEN=secret)
    assert robot.out("tenant", "list").splitlines()[1].startswith("ubar")
    (token,) = ann.json(*account, "tokens", "deploy")
    assert (token["name"], token["scopes"], token["expires_at"] is None) == ("ci", ["read"], False)
    assert "is disabled, viewer" in ann.out(*account, "set", "deploy", "--role", "viewer", "--disable")
    assert robot.run("tenant", "list").returncode == 1
    asked = ann.run(*account, "remove", "deploy", given="n\n")
    assert (asked.returncode, "Its tokens stop working at once" in asked.stderr) == (1, True)
    ann.out(*account, "remove", "deploy", "--yes")
    assert not ServiceAccount.objects.exists()


def test_a_capability_is_asked_for_granted_and_revoked(ann, sre, ubar) -> None:
    asks = ("tenant", "capability")
    assert "no request was sent" in ann.out(*asks, "ask", "shell", "--reason", "look at what hangs", "--dry-run")
    number = str(ann.json(*asks, "ask", "shell", "--cell", "cc", "--reason", "look at what hangs")["id"])
    assert "ask an SRE" in ann.run(*asks, "answer", number, "--grant").stderr
    assert sre.out(*asks, "answer", number, "--grant", "--answer", "fine") == f"Request {number} of ann is granted.\n"
    assert "fine" in ann.out(*asks, "requests")
    (held,) = ann.json(*asks, "list")
    assert (held["kind"], held["cell"], held["user"]) == ("shell", "cc", "ann")
    assert sre.out(*asks, "revoke", str(held["id"])) == f"Capability {held['id']} is revoked.\n"
    far = ("--reason", "latency", "--until", "2099-01-01")
    assert "expires_at" in sre.run(*asks, "grant", "ann", "reserve-cores", *far).stderr
