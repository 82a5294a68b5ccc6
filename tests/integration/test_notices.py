"""Tests of storing notices: they are written in the transaction of their change, with a subject and a link."""

from __future__ import annotations

import pathlib

import pytest

from quota import records
from quota.models import Notice, Tenant
from quota.notifications.notice_kinds import KINDS
from quota.notifications.notices import notify
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system

pytestmark = pytest.mark.django_db


@pytest.fixture
def demo():
    return Tenant.objects.create(name="demo")


def reported(tenant, kind="order.approved", **more):
    with records.write(system("test")) as entry:
        notify(entry, tenant, kind, more.pop("subject", "Approved"), more.pop("text", "It was."), **more)
    return Notice.objects.first()


def test_what_is_reported_is_a_row_of_the_change(demo):
    notice = reported(demo, url="/o/1/", level="warning", order=1)
    assert (notice.tenant, notice.kind, notice.level, notice.data) == (demo, "order.approved", "warning", {"order": 1})


def test_a_change_that_fails_tells_nobody(demo):
    def fails():
        with records.write(system("test")) as entry:
            notify(entry, demo, "order.approved", "Approved", "It was.")
            raise Rejected("no", "no")

    with pytest.raises(Rejected):
        fails()
    assert not Notice.objects.exists()


def test_many_are_one_insert(demo, django_assert_num_queries):
    with django_assert_num_queries(3), records.write(system("test")) as entry:  # savepoint, insert, release
        for number in range(100):
            notify(entry, demo, "order.reminder", f"Order {number} ends", "Soon.")
    assert Notice.objects.count() == 100


def test_a_kind_that_is_not_listed_cannot_be_sent(demo):
    with pytest.raises(ValueError, match=r"kind 'order\.eaten' is unknown"):
        reported(demo, kind="order.eaten")


@pytest.mark.parametrize("url", ["http://elsewhere/", "//elsewhere/", "relative"])
def test_links_lead_into_the_portal(demo, url):
    with pytest.raises(ValueError, match="not a path of the portal"):
        reported(demo, url=url)


def test_a_subject_is_one_line_that_fits(demo):
    notice = reported(demo, subject="Approved\r\nBcc: somebody " + "x" * 300)
    assert notice.subject.startswith("Approved Bcc: somebody xxx")
    assert len(notice.subject) == 200


def test_kinds_are_named_once_and_documented():
    readme = pathlib.Path("quota/README.md").read_text()
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names)
    assert [name for name in names if f"`{name}`" not in readme] == []
