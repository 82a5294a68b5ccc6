"""Tests of the pages of the inbox and of channels, in the portal and in the console."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from quota import records
from quota.models import Notice, NoticeChannel, NoticeDelivery, NoticeRead, Tenant
from quota.notifications import channels
from quota.notifications.notices import notify
from quota.vocabulary.permissions import system
from tests.integration import portal_world
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
SRE = system("test")


@pytest.fixture
def ubar():
    return portal_world.make().tenant


def reported(tenant, subject="Approved", count=1, **more):
    with records.write(SRE) as entry:
        for _ in range(count):
            notify(
                entry, tenant, more.get("kind", "order.approved"), subject, "It <was>.", level=more.get("level", "info")
            )
    return Notice.objects.first()


def add(tenant, target="https://hooks.example/key", kind="webhook", **more):
    return channels.channel_add(principal=SRE, tenant=tenant, kind=kind, target=target, **more)


def test_the_bell_counts_what_is_unread_up_to_a_hundred(ubar):
    owner = signed_in("owner")
    assert "bell-count" not in owner.get("/notices/").text
    reported(ubar, count=3)
    reported(Tenant.objects.get(name="other"))
    reported(None)
    assert "Notices, 3 unread" in owner.get("/").text
    assert "Notices, 1 unread" in signed_in("sre").get("/").text
    reported(ubar, count=200)
    assert "Notices, 99+ unread" in owner.get("/").text


@pytest.mark.parametrize("path", ["/accounts/password/change/", "/accounts/2fa/", "/no/such/page"])
def test_the_bell_counts_on_pages_of_accounts_and_errors_too(ubar, path):
    sre = signed_in("sre")
    assert "Notices, 1 unread" not in sre.get(path).text
    reported(None)
    assert "Notices, 1 unread" in sre.get(path).text


def test_the_bell_costs_one_query_however_much_there_is(ubar):
    owner = signed_in("owner")
    owner.get("/tokens/")
    with CaptureQueriesContext(connection) as few:
        owner.get("/tokens/")
    reported(ubar, count=300)
    with CaptureQueriesContext(connection) as many:
        owner.get("/tokens/")
    assert len(few) == len(many)
    assert sum("quota_noticeread" in query["sql"] for query in many.captured_queries) == 1


def test_marked_as_read_is_what_was_shown(ubar):
    owner = signed_in("owner")
    shown = reported(ubar, "Seen")
    later = reported(ubar, "Came meanwhile")
    assert f'name="up_to" value="{later.pk}"' in owner.get("/notices/").text
    assert owner.post("/notices/read/", {"up_to": shown.pk}).url == "/notices/"
    text = owner.get("/notices/?unread=1").text
    assert "Came meanwhile" in text
    assert "Seen" not in text
    assert "Notices, 2 unread" in signed_in("viewer").get("/notices/").text


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, 422),
        ({"up_to": "x"}, 422),
        ({"up_to": 10**17}, 422),
        ({"up_to": 0, "tenant": "other"}, 404),
        ({"up_to": 0, "tenant": "sre-"}, 404),
        ({"up_to": 0, "tenant": "\x00"}, 422),
    ],
    ids=["nothing", "no-number", "none-such", "anothers", "the-sres", "nul"],
)
def test_a_forged_mark_changes_nothing(ubar, given, status):
    assert signed_in("owner").post("/notices/read/", given).status_code == status
    assert not NoticeRead.objects.exists()


def test_the_inbox_is_filtered_and_goes_back_page_by_page(ubar):
    owner = signed_in("owner")
    reported(ubar, "Old one")
    reported(ubar, "Loud one", kind="budget.alert", level="warning")
    reported(ubar, count=60)
    first = owner.get("/notices/")
    assert "Old one" not in first.text
    older = first.text.partition('rel="next" href="')[2].partition('"')[0]
    assert "Old one" in owner.get("/notices/" + older).text
    for query in ("kind=budget", "level=warning", "kind=budget&unread=1&tenant=ubar"):
        text = owner.get(f"/notices/?{query}").text
        assert "Loud one" in text
        assert "Approved" not in text
        assert "Mark all as read" not in text or "kind" not in query
    assert owner.get("/notices/?tenant=other").status_code == 404
    assert owner.get("/notices/?level=loud").status_code == 422
    assert owner.get("/notices/?kind=%00").status_code == 400
    assert "It &lt;was&gt;." in first.text


def test_a_channel_is_added_changed_tried_and_removed(ubar):
    owner = signed_in("owner")
    given = {
        "tenant": "ubar",
        "kind": "webhook",
        "target": "https://hooks.example/key",
        "level": "warning",
        "kinds": ["order"],
    }
    path = owner.post("/notices/channels/", given).url
    row = NoticeChannel.objects.get()
    assert (row.kinds, row.level, row.created_by) == (["order"], "warning", "owner")
    shown = owner.get(path)
    assert row.secret in shown.text
    assert "no-store" in shown["Cache-Control"]
    owner.post(path, {"target": "https://hooks.example/new", "level": "info", "enabled": "on"})
    owner.post(path + "test/")
    owner.post(path + "rotate/", {"hours": 1})
    assert NoticeDelivery.objects.get().notice.kind == "notices.test"
    row.refresh_from_db()
    assert (row.target, row.kinds, bool(row.secret_before)) == ("https://hooks.example/new", [], True)
    assert "A test of this channel" in owner.get(path).text
    owner.post(path, {"target": row.target, "level": "info"})
    row.refresh_from_db()
    assert not row.enabled
    assert NoticeDelivery.objects.get().error == "not sent, because the channel was disabled"
    assert owner.post(path + "remove/").url == "/notices/channels/"
    assert not NoticeChannel.objects.exists()


def test_finer_kinds_survive_the_form(ubar):
    row = add(ubar, kinds=["order.placed"])
    signed_in("owner").post(
        f"/notices/channels/{row.pk}/", {"target": row.target, "level": "info", "enabled": "on", "kinds": ["budget"]}
    )
    row.refresh_from_db()
    assert row.kinds == ["budget", "order.placed"]


def test_a_refusal_stands_on_the_form(ubar):
    owner = signed_in("owner")
    bad = {"tenant": "ubar", "kind": "webhook", "target": "http://10.0.0.1/<x>", "level": "info"}
    answer = owner.post("/notices/channels/", bad)
    assert answer.status_code == 422
    assert "the address is in a private network" in answer.text
    assert "http://10.0.0.1/&lt;x&gt;" in answer.text
    row = add(ubar)
    assert owner.post(f"/notices/channels/{row.pk}/", {"target": "x", "level": "info"}).status_code == 422
    assert owner.post(f"/notices/channels/{row.pk}/rotate/", {"hours": "9999"}).status_code == 422


@pytest.mark.parametrize("name", ["viewer", "operator", "stranger"])
def test_only_owners_manage_channels(ubar, name):
    row, client = add(ubar), signed_in(name)
    path = f"/notices/channels/{row.pk}/"
    refused = 404 if name == "stranger" else 403
    assert client.get(path).status_code == (404 if name == "stranger" else 200)
    assert row.secret not in client.get(path).text
    assert "/key" not in client.get(path).text
    for part, given in (
        ("", {"target": "https://x.example/", "level": "info"}),
        ("test/", {}),
        ("rotate/", {}),
        ("remove/", {}),
    ):
        assert client.post(path + part, given).status_code == refused, part
    new = {"tenant": "ubar", "kind": "email", "target": "x@ubar.example", "level": "info"}
    assert client.post("/notices/channels/", new).status_code == refused
    assert NoticeChannel.objects.get().target == row.target


def test_sres_have_channels_of_their_own(ubar):
    sre = signed_in("sre")
    given = {"tenant": "sre-", "kind": "email", "target": "sre@portal.example", "level": "urgent"}
    path = sre.post("/notices/channels/", given).url
    assert NoticeChannel.objects.get().tenant is None
    assert "the SREs" in sre.get(path).text
    assert signed_in("owner").get(path).status_code == 404


def test_the_console_shows_how_far_notices_got_and_no_secret(ubar):
    row, sre = add(ubar), signed_in("sre")
    reported(ubar)
    NoticeChannel.objects.filter(pk=row.pk).update(paused_at=row.created_at, error="no answer")
    listed = reverse("admin:quota_noticechannel_changelist")
    assert "no answer" in sre.get(listed).text
    assert row.secret not in sre.get(reverse("admin:quota_noticechannel_change", args=[row.pk])).text
    sre.post(listed, {"action": "try_out", "_selected_action": [row.pk]})
    row.refresh_from_db()
    assert row.paused_at is None
    assert "A test of this channel" in sre.get(reverse("admin:quota_noticedelivery_changelist")).text
    sre.post(listed, {"action": "switch_off", "_selected_action": [row.pk]})
    row.refresh_from_db()
    assert not row.enabled
