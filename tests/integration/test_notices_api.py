"""Tests of the REST API of notices: the inbox, what is read, and channels with their secrets."""

from __future__ import annotations

import pytest
from django.core.cache import cache

from quota import records
from quota.models import Membership, Notice, NoticeChannel, Record
from quota.notifications.notices import notify
from quota.vocabulary.permissions import Role, system
from tests.integration import rows
from tests.integration import world as people

pytestmark = pytest.mark.django_db
SRE = system("test")


@pytest.fixture
def own():
    cache.clear()
    return rows.a_tenant("own")


def reported(tenant, kind="order.approved", level="info", **more):
    with records.write(SRE) as entry:
        notify(entry, tenant, kind, f"About {kind}", "So it is.", level=level, **more)
    return Notice.objects.first()


def client(name, tenant=None, **who):
    return people.bearer(people.a_user(name, tenant=tenant, **who))


def call(who, method, path, body=None, status=200):
    answer = getattr(who, method)(f"/api/v1/{path}", body, content_type="application/json")
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def test_the_inbox_holds_the_notifications_of_ones_tenants(own):
    other = rows.a_tenant("other")
    reported(own)
    reported(other)
    reported(None, "shortfall.found")
    reported(own, "budget.alert", "warning", url="/b/")
    owner, sre = client("owner", own), client("sre", sre=True)
    inbox = call(owner, "get", "notices/")["results"]
    assert [(row["tenant"], row["kind"], row["unread"]) for row in inbox] == [
        ("own", "budget.alert", True),
        ("own", "order.approved", True),
    ]
    assert inbox[0]["url"] == "http://127.0.0.1:8000/b/"
    assert [row["kind"] for row in call(sre, "get", "notices/")["results"]] == ["shortfall.found"]
    assert [row["tenant"] for row in call(sre, "get", "notices/?tenant=other")["results"]] == ["other"]
    assert call(sre, "get", "notices/?tenant=sre-")["results"][0]["tenant"] is None
    for query in ("kind=budget", "kind=budget.alert", "level=warning"):
        assert [row["kind"] for row in call(owner, "get", f"notices/?{query}")["results"]] == ["budget.alert"]
    for hidden in ("other", "nobody", "sre-"):
        call(owner, "get", f"notices/?tenant={hidden}", status=404)


def test_read_up_to_a_notice_for_oneself_alone(own):
    first, second = reported(own), reported(own)
    owner, viewer = client("owner", own), client("viewer", own, role=Role.VIEWER)
    call(owner, "post", "notices/read/", {"up_to": first.pk})
    assert [row["id"] for row in call(owner, "get", "notices/?unread=1")["results"]] == [second.pk]
    assert len(call(viewer, "get", "notices/?unread=1")["results"]) == 2
    call(owner, "post", "notices/read/", {"up_to": second.pk, "tenant": "own"})
    call(owner, "post", "notices/read/", {"up_to": first.pk})  # the mark never moves backwards
    assert call(owner, "get", "notices/?unread=1")["results"] == []
    call(owner, "post", "notices/read/", {"up_to": second.pk + 1}, 422)
    call(owner, "post", "notices/read/", {"up_to": second.pk, "tenant": None}, 404)


def test_a_user_who_left_reads_nothing_more(own):
    reported(own)
    owner = client("owner", own)
    assert len(call(owner, "get", "notices/")["results"]) == 1
    Membership.objects.all().delete()
    assert call(owner, "get", "notices/")["results"] == []


def test_an_inbox_is_paged_newest_first(own):
    numbers = [reported(own).pk for _ in range(5)]
    owner = client("owner", own)
    page = call(owner, "get", "notices/?limit=2")
    seen = [row["id"] for row in page["results"]]
    while page["next"]:
        page = owner.get(page["next"]).json()
        seen += [row["id"] for row in page["results"]]
    assert seen == numbers[::-1]


def test_a_channel_from_its_making_to_its_end(own):
    owner, viewer = client("owner", own), client("viewer", own, role=Role.VIEWER)
    wanted = {"tenant": "own", "kind": "webhook", "target": "https://hooks.example/key", "kinds": ["order"]}
    made = call(owner, "post", "notices/channels/", wanted, 201)
    assert {name: made[name] for name in wanted} == wanted
    assert "whsec_" not in str(made)
    path = f"notices/channels/{made['id']}/"
    assert call(viewer, "get", path)["target"] == "https://hooks.example/…"
    call(viewer, "get", path + "secret/", status=403)
    (secret,) = call(owner, "get", path + "secret/")["secrets"]
    rotated = call(owner, "post", path + "secret/", {"overlap_hours": 2})["secrets"]
    assert (len(rotated), rotated[1]) == (2, secret)
    assert call(owner, "patch", path, {"level": "urgent", "enabled": False})["enabled"] is False
    call(owner, "post", path + "test/", {}, 409)
    call(owner, "patch", path, {"enabled": True})
    assert call(owner, "post", path + "test/", {}, 201)["state"] == "waiting"
    assert [row["kind"] for row in call(viewer, "get", path + "deliveries/")["results"]] == ["notices.test"]
    call(owner, "post", "notices/channels/", wanted, 409)
    call(owner, "delete", path, status=204)
    assert call(owner, "get", "notices/channels/")["results"] == []
    assert list(Record.objects.filter(kind__startswith="channel.").values_list("kind", flat=True)) == [
        "channel.added",
        "channel.secret-rotated",
        "channel.changed",
        "channel.changed",
        "channel.tested",
        "channel.removed",
    ]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"kind": "pigeon"}, "kind"),
        ({"target": "nobody"}, "target"),
        ({"target": "a@b.example\r\nBcc: c@d.example"}, "target"),
        ({"kind": "webhook", "target": "ftp://h/"}, "target"),
        ({"kind": "webhook", "target": "http://127.0.0.1:5432/"}, "target"),
        ({"kind": "webhook", "target": "http://[fe80::1]/"}, "target"),
        ({"kinds": ["orders"]}, "kinds"),
        ({"kinds": "order"}, "kinds"),
        ({"level": "loud"}, "level"),
        ({"levels": "info"}, "levels"),
        ({"target": "x\x00@own.example"}, "target"),
        ({"tenant": "\x00"}, "tenant"),
    ],
)
def test_bad_channels_are_refused_by_field(own, given, field):
    wanted = {"tenant": "own", "kind": "email", "target": "x@own.example", **given}
    answer = call(client("owner", own), "post", "notices/channels/", wanted, 422)
    assert list(answer["fields"]) == [field]
    assert not NoticeChannel.objects.exists()


def test_the_number_of_channels_is_bounded(own):
    owner = client("owner", own)
    for number in range(20):
        wanted = {"tenant": "own", "kind": "email", "target": f"x{number}@own.example"}
        call(owner, "post", "notices/channels/", wanted, 201)
    wanted["target"] = "more@own.example"
    assert call(owner, "post", "notices/channels/", wanted, 422)["code"] == "too-many"


def test_a_rehearsal_changes_nothing_and_shows_no_secret(own):
    owner = client("owner", own)
    wanted = {"tenant": "own", "kind": "webhook", "target": "https://hooks.example/"}
    call(owner, "post", "notices/channels/?dry_run=1", wanted, 201)
    assert not NoticeChannel.objects.exists()
    path = f"notices/channels/{call(owner, 'post', 'notices/channels/', wanted, 201)['id']}/"
    (secret,) = call(owner, "get", path + "secret/")["secrets"]
    assert call(owner, "post", path + "secret/?dry_run=1", {})["secrets"] == []
    call(owner, "post", path + "test/?dry_run=1", {}, 201)
    call(owner, "delete", path + "?dry_run=1", status=204)
    assert call(owner, "get", path + "secret/")["secrets"] == [secret]
    assert not Notice.objects.exists()


@pytest.mark.parametrize("query", ["level=loud", "unread=maybe", "kind=%00", "limit=0", "cursor=x"])
def test_bad_questions_are_refused(own, query):
    call(client("owner", own), "get", f"notices/?{query}", status=422)


def test_queries_do_not_grow_with_notices(own, django_assert_max_num_queries):
    owner = client("owner", own)
    call(owner, "get", "notices/")
    for _ in range(50):
        reported(own)
    with django_assert_max_num_queries(6):
        assert len(call(owner, "get", "notices/")["results"]) == 50
