"""Tests of sending notices to a real HTTP server and a real SMTP server: their order and their retries."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import smtplib
import time

import pytest
from django.db import connection

from quota import clock, records
from quota.models import Notice, NoticeChannel, NoticeDelivery, Record, Tenant
from quota.notifications import channels, delivery_attempts, webhook_client
from quota.notifications.notices import notify
from quota.vocabulary.permissions import system
from tests.integration.listeners import Hook, Post, listening
from tests.webhook_receiver import is_signed

pytestmark = pytest.mark.django_db
SRE = system("test")
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def demo():
    return Tenant.objects.create(name="demo")


@pytest.fixture
def hook(settings):
    settings.BORG_WEBHOOK_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
    with listening(Hook()) as server:
        yield server


@pytest.fixture
def post(settings):
    with listening(Post()) as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = server.server_address
        settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
        yield server


def reported(tenant, kind="order.approved", subject="Approved", text="It was.", **more):
    with records.write(SRE) as entry:
        notify(entry, tenant, kind, subject, text, **more)
    return Notice.objects.first()


def add(tenant, target, kind="webhook", **more):
    return channels.channel_add(principal=SRE, tenant=tenant, kind=kind, target=target, **more)


def states():
    return list(NoticeDelivery.objects.order_by("id").values_list("state", flat=True))


def test_a_webhook_carries_the_notice_and_its_signature(demo, hook, settings):
    settings.PORTAL_URL = "https://portal.example/"
    channel = add(demo, hook.url("/in?a=b"))
    notice = reported(demo, subject="Größe geändert", url="/orders/7/", level="warning", order=7)
    assert delivery_attempts.notices_send() == delivery_attempts.Sent(sent=1)
    ((path, headers, body),) = hook.calls
    assert path == "/in?a=b"
    assert json.loads(body) == {
        "id": f"notice-{notice.pk}",
        "kind": "order.approved",
        "level": "warning",
        "tenant": "demo",
        "subject": "Größe geändert",
        "text": "It was.",
        "url": "https://portal.example/orders/7/",
        "created_at": notice.created_at.isoformat(),
        "data": {"order": 7},
    }
    assert headers["Borg-Notice"] == f"notice-{notice.pk}"
    assert is_signed(channel.secret, headers["Borg-Signature"], body, now_s=int(time.time()))
    assert states() == ["sent"]


def test_a_mail_says_it_in_text_and_in_html(demo, post, settings):
    settings.PORTAL_URL = "https://portal.example"
    add(demo, "team@demo.example", "email")
    notice = reported(demo, subject="Grün & <gut>", text="Line one.\n\nLine <two>.", url="/orders/7/")
    assert delivery_attempts.notices_send().sent == 1
    (mail,) = post.mails
    assert (mail["Subject"], mail["To"]) == ("[Borg Portal] Grün & <gut>", "team@demo.example")
    assert mail["Borg-Notice"] == f"notice-{notice.pk}"
    plain, html = (part.get_content().replace("\r\n", "\n") for part in mail.iter_parts())
    assert plain.startswith("Line one.\n\nLine <two>.\n\nhttps://portal.example/orders/7/\n")
    assert "https://portal.example/notices/channels/" in plain
    assert "<p>Line &lt;two&gt;.</p>" in html
    assert '<a href="https://portal.example/orders/7/">' in html


def test_each_channel_gets_what_it_asked_for(demo, hook):
    other = Tenant.objects.create(name="other")
    add(demo, hook.url("/all"))
    add(demo, hook.url("/orders"), kinds=["order"])
    add(demo, hook.url("/urgent"), level="urgent")
    add(None, hook.url("/sre"))
    add(other, hook.url("/other"))
    off = add(demo, hook.url("/off"))
    channels.channel_set(principal=SRE, channel=off, enabled=False)
    reported(demo)
    reported(demo, kind="budget.stopped", level="urgent")
    reported(None, kind="shortfall.found")
    delivery_attempts.notices_send()
    assert sorted((path, json.loads(body)["kind"]) for path, _, body in hook.calls) == [
        ("/all", "budget.stopped"),
        ("/all", "order.approved"),
        ("/orders", "order.approved"),
        ("/sre", "shortfall.found"),
        ("/urgent", "budget.stopped"),
    ]


def test_what_was_sent_is_not_sent_again(demo, hook):
    add(demo, hook.url())
    reported(demo)
    assert [delivery_attempts.notices_send().sent for _ in range(3)] == [1, 0, 0]
    assert len(hook.calls) == 1


def test_notices_come_in_order_also_after_a_failure(demo, hook):
    channel = add(demo, hook.url())
    hook.answers["/in"] = [200, 503]
    for number in range(4):
        reported(demo, subject=f"Number {number}")
    assert delivery_attempts.notices_send() == delivery_attempts.Sent(sent=1, failed=1)
    channel.refresh_from_db()
    assert channel.failing_since is not None
    assert channel.error == "127.0.0.1 answered 503; check the receiver"
    assert delivery_attempts.notices_send() == delivery_attempts.Sent()  # the others wait behind the one that failed
    with clock.at(clock.now() + dt.timedelta(seconds=31)):
        assert delivery_attempts.notices_send() == delivery_attempts.Sent(sent=3)
    heard = [json.loads(body) for body in hook.bodies()]
    assert [said["subject"][-1] for said in heard] == ["0", "1", "1", "2", "3"]
    assert heard[1]["id"] == heard[2]["id"]
    channel.refresh_from_db()
    assert (channel.failing_since, channel.error) == (None, "")


def test_waits_double_up_to_an_hour():
    waits = [delivery_attempts.retry_after(attempts).total_seconds() for attempts in (1, 2, 3, 8, 9, 1000)]
    assert waits == [30, 60, 120, 3600, 3600, 3600]


def test_after_a_day_it_is_given_up_and_the_channel_paused(demo, hook):
    channel = add(demo, hook.url())
    inform = add(demo, hook.url("/fine"))
    hook.answers["/in"] = [500] * 1000
    with clock.at(NOON):
        reported(demo)
        delivery_attempts.notices_send()
    for hours in range(1, 25):
        with clock.at(NOON + dt.timedelta(hours=hours)):
            if hours == 24:
                reported(demo, kind="order.expired")
            delivery_attempts.notices_send()
    channel.refresh_from_db()
    assert channel.paused_at == NOON + dt.timedelta(days=1)
    of_it = NoticeDelivery.objects.filter(channel=channel).order_by("id")
    assert [(delivery.state, delivery.error) for delivery in of_it] == [
        ("failed", "127.0.0.1 answered 500; check the receiver"),
        ("failed", "not sent, because the channel was paused: 127.0.0.1 answered 500; check the receiver"),
    ]
    assert Notice.objects.first().kind == "notices.paused"
    assert Record.objects.filter(kind="notices.channel-paused", tenant="demo").count() == 1
    heard = [json.loads(body)["kind"] for body in hook.bodies("/fine")]
    assert heard == ["order.approved", "order.expired", "notices.paused"]
    reported(demo)
    delivery_attempts.notices_send()
    assert of_it.count() == 2  # a paused channel gets no more notices
    assert NoticeDelivery.objects.filter(channel=inform, state="sent").count() == 4


def test_a_test_ends_the_pause_and_goes_through_this_channel_alone(demo, hook):
    channel = add(demo, hook.url())
    add(demo, hook.url("/another"))
    NoticeChannel.objects.filter(pk=channel.pk).update(
        paused_at=NOON, failing_since=NOON, error="no", level="urgent", kinds=["order"]
    )
    channels.channel_test(principal=SRE, channel=channel)
    assert delivery_attempts.notices_send() == delivery_attempts.Sent(sent=1)
    assert [json.loads(body)["kind"] for body in hook.bodies()] == ["notices.test"]
    assert len(hook.calls) == 1
    channel.refresh_from_db()
    assert (channel.paused_at, channel.failing_since, channel.error) == (None, None, "")


def test_what_the_receiver_does_not_want_makes_way_after_a_few_attempts(demo, hook):
    add(demo, hook.url())
    reported(demo, subject="unwanted")
    hook.answers["/in"] = [422] * 5
    moment = clock.now()
    for _ in range(5):
        with clock.at(moment):
            delivery_attempts.notices_send()
        moment += dt.timedelta(hours=1)
    reported(demo, subject="wanted")
    with clock.at(moment):
        delivery_attempts.notices_send()
    assert states() == ["failed", "sent"]
    assert NoticeDelivery.objects.last().error == "127.0.0.1 answered 422; check the receiver"


def test_redirects_are_not_followed(demo, hook):
    add(demo, hook.url())
    reported(demo)
    hook.answers["/in"] = [302]
    assert delivery_attempts.notices_send().failed == 1
    assert [path for path, _, _ in hook.calls] == ["/in"]
    assert "a redirect" in NoticeDelivery.objects.get().error


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_addresses_that_only_the_portal_reaches_are_not_called(demo, hook, settings, host):
    port = hook.server_address[1]
    channel = add(demo, "https://hooks.example/in")
    NoticeChannel.objects.filter(pk=channel.pk).update(target=f"http://{host}:{port}/in")
    settings.BORG_WEBHOOK_NETWORKS = ()
    reported(demo)
    assert delivery_attempts.notices_send().failed == 1
    assert hook.calls == []
    assert "private network" in NoticeDelivery.objects.get().error


def test_a_slow_receiver_holds_up_nobody(demo, hook):
    other = Tenant.objects.create(name="other")
    add(demo, hook.url("/slow"))
    add(other, hook.url("/quick"))
    hook.slow.add("/slow")
    reported(demo)
    for _ in range(3 * delivery_attempts.DELIVERIES_AT_ONCE):
        reported(other)

    hook.frees = ("/quick", 3 * delivery_attempts.DELIVERIES_AT_ONCE)  # the slow receiver answers after the others
    assert delivery_attempts.notices_send() == delivery_attempts.Sent(sent=1 + 3 * delivery_attempts.DELIVERIES_AT_ONCE)
    assert set(states()) == {"sent"}


def test_one_that_never_answers_is_cut_off(hook):
    hook.slow.add("/in")
    began = time.monotonic()
    with pytest.raises(webhook_client.DeliveryFailed, match=r"did not answer within 0\.3 seconds"):
        webhook_client.post(
            webhook_client.receiver(hook.url()), b"{}", {}, allowed=[ipaddress.ip_network("127.0.0.0/8")], timeout_s=0.3
        )
    hook.freed.set()
    assert time.monotonic() - began < 5.0


def test_nobody_there(demo, hook):
    add(demo, hook.url())
    hook.shutdown()
    hook.server_close()
    reported(demo)
    assert delivery_attempts.notices_send().failed == 1
    assert "refused" in NoticeDelivery.objects.get().error


def test_a_mail_server_that_refuses_the_address(demo, post):
    add(demo, "gone@demo.example", "email")
    add(demo, "there@demo.example", "email")
    post.refuses["gone@demo.example"] = 550
    reported(demo)
    assert delivery_attempts.notices_send() == delivery_attempts.Sent(sent=1, failed=1)
    errors = set(NoticeDelivery.objects.values_list("error", flat=True))
    assert errors == {"", "the mail server rejected the address: no such box; check the address of this channel"}


def test_a_sender_that_dies_leaves_its_channel_after_the_lease(demo, hook):
    add(demo, hook.url())
    reported(demo)
    delivery_attempts.spread()
    ((_channel, waiting),) = delivery_attempts.claim(16)
    assert len(waiting) == 1
    assert delivery_attempts.claim(16) == []
    assert delivery_attempts.notices_send() == delivery_attempts.Sent()
    with clock.at(clock.now() + delivery_attempts.LEASE):
        assert delivery_attempts.notices_send() == delivery_attempts.Sent(sent=1)


def test_a_channel_removed_meanwhile_is_not_an_error(demo, hook):
    channel = add(demo, hook.url())
    reported(demo)
    delivery_attempts.spread()
    ((claimed, waiting),) = delivery_attempts.claim(16)
    channels.channel_remove(principal=SRE, channel=channel)
    delivery_attempts.settle(claimed, [delivery_attempts.DeliveryOutcome(waiting[0].pk)])
    assert not NoticeDelivery.objects.exists()


def test_queries_do_not_grow_with_notices(demo, hook, django_assert_max_num_queries):
    for number in range(5):
        add(demo, hook.url(f"/{number}"))
    for _ in range(200):
        reported(demo)
    with django_assert_max_num_queries(8):
        assert delivery_attempts.spread() == 200
    assert NoticeDelivery.objects.count() == 1000
    with django_assert_max_num_queries(7):
        assert len(delivery_attempts.claim(16)) == 5


def test_only_one_sender_runs(demo, hook):
    add(demo, hook.url())
    reported(demo)
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [delivery_attempts._LOCK])
            assert delivery_attempts.notices_send() == delivery_attempts.Sent()
            # Release the lock here, because a closed session keeps its locks until its process has noticed.
            cursor.execute("SELECT pg_advisory_unlock(%s)", [delivery_attempts._LOCK])
    finally:
        other.close()
    assert delivery_attempts.notices_send() == delivery_attempts.Sent(sent=1)


def test_a_rotated_secret_signs_beside_the_old_one_until_its_time(demo, hook):
    before = add(demo, hook.url())
    with clock.at(NOON):
        after = channels.channel_secret_rotate(principal=SRE, channel=before)
    assert after.secret != before.secret
    for moment in (NOON + dt.timedelta(hours=23), NOON + dt.timedelta(hours=24)):
        with clock.at(moment):
            reported(demo)
            delivery_attempts.notices_send()
    now_s = int(time.time())
    signed = [
        [is_signed(key, headers["Borg-Signature"], body, now_s=now_s) for key in (before.secret, after.secret)]
        for _, headers, body in hook.calls
    ]
    assert signed == [[True, True], [False, True]]


def test_the_mail_server_of_the_tests_is_one():
    with listening(Post()) as server, smtplib.SMTP(*server.server_address, timeout=5) as client:
        assert client.noop()[0] == 250
