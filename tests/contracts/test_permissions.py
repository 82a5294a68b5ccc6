"""Tests of permissions: each endpoint is called in every role, at the role's own tenant and at another tenant.

An endpoint without a line in `doors.DOORS` fails a test.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from django.core.cache import cache
from django.db import transaction
from django.http import HttpResponse
from django.test import Client
from pytest_django.plugin import DjangoDbBlocker

from naming.api import dns_server_status
from quota import clock
from quota.admission import published_capacity
from quota.billing.ledger import budget_grant
from quota.market.orders import order_place
from quota.models import ApprovalRule, Tenant
from quota.notifications.channels import channel_add
from quota.pricing.price_lists import quote_make
from quota.tenancy.capabilities import capability_ask, capability_grant
from quota.tenancy.invitations import invitation_send
from quota.tenancy.service_accounts import service_account_create
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import Role, Scope, system
from scheduling.cells.sites import cluster_create, site_create
from scheduling.job_templates import templates
from scheduling.job_templates.dispatch_tokens import dispatch_token_issue
from scheduling.jobs import submit_and_kill
from scheduling.locks import locks
from scheduling.locks.sessions import Space
from scheduling.maintenance.windows import window_write
from scheduling.pools.pools import pool_write
from scheduling.repacking.repackings import repacking_plan
from tests.contracts.described import deviation
from tests.contracts.doors import DIGEST, DOORS, NO_SESSION, OF_SERVICE, ROLES, TEMPLATE_FILE, WORKFLOW_FILE, Door
from tests.contracts.routes import Route, api_routes, pages
from tests.integration import config_rows, cron_rows, money_rows, rows, secret_rows, workflow_rows
from tests.integration import world as people

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test with empty rate limits, and wait only 0.05 s for a resolver, because none runs in these tests."""
    cache.clear()
    monkeypatch.setattr(dns_server_status, "TIMEOUT_S", 0.05)


@dataclass(frozen=True)
class World:
    """Two tenants with equal rows, an HTTP client for each role, and the ids of rows that paths name."""

    clients: dict[str, Client]
    key: str
    grant: int
    invitations: dict[str, str]
    capability: int
    asked: int
    repacking: int
    window: int
    pool: str
    quote: int
    order: int
    channel: int
    number: str
    credit: int

    def call(self, role: str, door: Door, tenant: str) -> int:
        """Call an endpoint, check that the OpenAPI document describes the answer, and return its status."""
        answer = self.answer(role, door, tenant)
        if "schema" not in door.path:  # this answer is the OpenAPI document itself
            assert deviation(door.method, door.path, answer) == "", f"{role} at tenant {tenant}"
        return answer.status_code

    def answer(self, role: str, door: Door, tenant: str) -> HttpResponse:
        """Call an endpoint and return the answer. All changes of the call are rolled back."""
        path = "/" + door.path.format(
            cell="cc",
            site="zurich",
            cluster="zrh-1",
            tenant=tenant,
            job="web",
            index=0,
            hostname="m1",
            username="viewer",
            key=self.key,
            brake="stops",
            repacking=self.repacking,
            window=self.window,
            pool=self.pool,
            revision=1,
            place="1.0",
            service="front",
            host="m1",
            grant=self.grant,
            quote=self.quote,
            order=self.order,
            rank=1,
            band="batch",
            name="tool",
            reference="v1",
            channel=self.channel,
            number=self.number,
            credit=self.credit,
            account="ci",
            secret="db",
            config="flags",
            invitation=self.invitations.get(tenant, "none"),
            capability=self.capability,
            asked=self.asked,
            session=10**6,
            lock_session=NO_SESSION,
        )
        body = {} if door.body is None else {"data": json.dumps(door.body), "content_type": "application/json"}
        with transaction.atomic():
            answer = getattr(self.clients[role], door.method)(path, **body)
            transaction.set_rollback(True)
        return answer


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    """Yield one `World` for all tests of this module. Each test rolls back its own changes."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield _world()
        transaction.set_rollback(True)


def _world() -> World:
    cell = rows.a_cell()
    site_create(principal=system("test"), name="zurich")
    cluster_create(principal=system("test"), name="zrh-1")
    own, other = rows.a_tenant("own"), rows.a_tenant("other")
    machine = rows.a_machine(cell)
    published_capacity.publish(cell=cell.name, capacity=rows.LARGE, revision=1)
    for tenant in (own, other):
        grant = rows.grant(own, cell, "production")
        boss = people.principal(f"boss-of-{tenant.name}", tenant=tenant)
        job = people.submit(boss, cell, people.a_file(**OF_SERVICE), tenant=tenant.name)
        people.bring_up(job, machine)
        rows.a_package(cell, tenant, name="tool", digest=DIGEST, tag="v1")
        for name in ("tool", "web"):  # the names in paths of REST and of pages
            cron_rows.apply(boss, cell, name, tenant=tenant.name)
            spec = templates.template_spec_for(
                principal=boss, cell=cell, file=TEMPLATE_FILE | {"name": name}, tenant=tenant.name
            )
            templates.template_apply(principal=boss, cell=cell, spec=spec)
            workflow_rows.apply(boss, cell, WORKFLOW_FILE["nodes"], name=name, tenant=tenant.name)
        larger = people.read(cell, people.a_file(tasks=4, **OF_SERVICE), tenant=tenant.name)
        submit_and_kill.job_apply(principal=boss, cell=cell, job_spec=larger)
    invitations = {}
    for tenant in (own, other):
        boss = people.principal(f"boss-of-{tenant.name}", tenant=tenant)
        service_account_create(principal=boss, tenant=tenant, name="ci", role="viewer")
        secret_rows.a_secret(boss, tenant, "db", b"hunter2", "tool")
        config_rows.a_file(boss, tenant, b"1")
        config_rows.a_file(boss, tenant, b"2")
        locks.write(Space(cell.id, tenant.id), "tool", "x", actor=boss.name)
        row, _ = invitation_send(principal=boss, tenant=tenant, email="new@example.org", role="viewer")
        invitations[tenant.name] = row.key
        user = people.a_user(boss.name)
        asked = capability_ask(principal=boss, tenant=tenant, username=boss.name, kind="any-job", reason="x")
        held = capability_grant(principal=system("test"), user=user, kind="shell", reason="x")
    clients = {
        role: people.bearer(people.a_user(role, tenant=own, role=Role(role)))
        for role in ("viewer", "operator", "buyer", "owner")
    }
    people.a_user("bound", tenant=other)
    token, _ = token_issue(principal=system("test"), user=people.a_user("somebody"), name="theirs", scopes=["read"])
    now = clock.now()
    quote = quote_make(
        principal=system("test"),
        tenant=own,
        cell="cc",
        band="batch",
        amounts={"cpu": 1},
        starts_at=now,
        ends_at=now + dt.timedelta(days=1),
    )
    ApprovalRule.objects.create(rank=1, approver="owner")
    budget_grant(principal=system("test"), tenant=own, amount=10**12)
    order = order_place(
        principal=system("test"),
        tenant=own,
        cell="cc",
        band="batch",
        amounts={"cpu": 1},
        ends_at=now.replace(microsecond=0) + dt.timedelta(days=1),
    )
    channel = channel_add(principal=system("test"), tenant=own, kind="webhook", target="https://hooks.example/in")
    invoice = money_rows.an_invoice(own)
    return World(
        clients={
            **clients,
            "anonymous": Client(),
            "reader": people.bearer(people.a_user("owner"), scopes=[Scope.READ]),
            "bound": people.bearer(people.a_user("bound", tenant=own), tenant=own),
            "sre": people.bearer(people.a_user("sre", sre=True)),
            "stranger": people.bearer(people.a_user("stranger")),
        },
        key=token.key,
        grant=grant.id,
        invitations=invitations,
        capability=held.id,
        asked=asked.id,
        repacking=repacking_plan(principal=system("test"), cell=cell, machines=1, reason="x").pk,
        pool=pool_write(principal=system("test"), cell=cell, name="gpu", tenants=[own.name]).name,
        window=window_write(
            principal=system("test"), cell=cell, machines=["m1"], reason="x", ends_at=clock.now() + dt.timedelta(days=1)
        ).pk,
        quote=quote.id,
        order=order.id,
        channel=channel.id,
        number=invoice.number,
        credit=money_rows.a_credit(own).pk,
    )


def test_every_endpoint_is_listed_here() -> None:
    found = {(method, route.path) for route in api_routes() for method in route.methods}
    assert found == {(door.method, door.path.partition("?")[0]) for door in DOORS}


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{door.method} {door.path}")
def test_each_role_may_do_what_its_row_allows(world: World, door: Door) -> None:
    for role in ROLES:
        if role in door.allowed:
            expected = door.status
        elif role == "anonymous":
            expected = 401
        else:
            expected = 404 if role in door.hidden else door.refused
        expected = door.expect.get(role, expected)
        assert world.call(role, door, "own") == expected, f"{role} at own tenant"
        if door.foreign is None:
            continue
        if role != "anonymous":
            expected = door.status if role in door.foreign else 404
        assert world.call(role, door, "other") == expected, f"{role} at a foreign tenant"
        if role not in ("anonymous", "sre"):
            assert world.call(role, door, "nobody") == 404, f"{role} at a tenant that does not exist"


def test_a_token_that_may_only_dispatch_opens_nothing_else(world: World) -> None:
    """Call every endpoint with a token for the template `tool` of tenant `own`."""
    principal = people.principal("boss-of-own", tenant=Tenant.objects.get(name="own"))
    with transaction.atomic():
        _, secret = dispatch_token_issue(
            principal=principal, user=people.a_user("boss-of-own"), name="ci", templates=["cc/own/tool"]
        )
        world.clients["dispatcher"] = Client(headers={"Authorization": f"Bearer {secret}"})
        open_to_all = ("api/v1/login/", "api/v1/schema/")
        for door in DOORS:
            own, other = (world.answer("dispatcher", door, tenant) for tenant in ("own", "other"))
            name = f"{door.method} {door.path}"
            if door.path.endswith("/{name}/dispatch/"):
                assert (own.status_code, other.status_code) == (422, 403), name
                assert "cannot choose the name of the job" in own.json()["detail"]
                assert "may not dispatch template cc/other/tool; it may dispatch cc/own/tool" in other.json()["detail"]
            elif door.path.endswith("/dispatched/{job}/"):
                assert (own.status_code, other.status_code) == (404, 403), "it has dispatched no job yet"
            elif door.path not in open_to_all:
                assert (own.status_code, other.status_code) == (403, 403), name
                assert "may only dispatch its templates and read the state" in own.json()["detail"], name
        transaction.set_rollback(True)
    del world.clients["dispatcher"]


PAGE_PARTS = {
    "secret": "none",
    "config": "flags",
    "account": "ci",
    "cell": "cc",
    "name": "web",
    "job": "web",
    "service": "front",
    "index": 0,
    "key": "none",
    "hostname": "m1",
    "number": 1,
    "place": "1.0",
}


@pytest.mark.parametrize("route", pages(), ids=str)
def test_pages_show_nothing_to_strangers(world: World, route: Route) -> None:
    path = "/" + route.path.format(**PAGE_PARTS, tenant="other")
    assert Client().get(path).status_code in (302, 403, 404, 405), "anonymous"
    if "{tenant}" in route.path:
        client = Client()
        client.force_login(people.a_user("owner"))
        assert client.get(path).status_code in (403, 404, 405), "the owner of another tenant"
        assert client.post(path).status_code in (403, 404, 405), "the owner of another tenant"
