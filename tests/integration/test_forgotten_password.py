"""Tests of a forgotten password: a link by mail sets a new one, without telling who has an account."""

from __future__ import annotations

import re

import pytest
from django.core import mail
from django.core.cache import cache
from django.test import Client

from tests.integration import portal_world
from tests.integration.portal_world import PASSWORD

pytestmark = pytest.mark.django_db
PAGE = "/accounts/password/reset/"
NEW = "battery staple horse"


@pytest.fixture(autouse=True)
def ann(settings):
    cache.clear()
    settings.EMAIL_HOST = "mail.example.org"
    return portal_world.person("ann", email="ann@example.org")


def ask(address: str):
    return Client().post(PAGE, {"email": address})


def test_the_link_in_the_mail_sets_a_new_password_once_and_ends_sessions() -> None:
    elsewhere = Client()
    elsewhere.post("/accounts/login/", {"login": "ann", "password": PASSWORD})
    assert ask("ann@example.org").status_code == 302
    assert mail.outbox[0].to == ["ann@example.org"]
    link = re.search(r"http://testserver(/accounts/password/reset/key/\S+)", mail.outbox[0].body)[1]
    client = Client()
    form = client.get(link)["Location"]
    assert client.post(form, {"password1": NEW, "password2": NEW}).status_code == 302
    assert elsewhere.get("/sign-in/").status_code == 302
    assert Client().post("/accounts/login/", {"login": "ann", "password": NEW}).status_code == 302
    assert "Bad Token" in Client().get(link).content.decode()


def test_the_answer_does_not_tell_who_has_an_account() -> None:
    known, unknown = ask("ann@example.org"), ask("nobody@example.org")
    assert (known.status_code, known["Location"]) == (unknown.status_code, unknown["Location"])
    assert [message.to for message in mail.outbox] == [["ann@example.org"]]


def test_an_account_of_an_identity_provider_gets_no_link(ann) -> None:
    ann.set_unusable_password()
    ann.save()
    assert ask("ann@example.org").status_code == 302
    assert mail.outbox == []


def test_mails_to_one_address_are_limited() -> None:
    answers = [ask("ann@example.org").status_code for _ in range(6)]
    assert (answers[0], answers[-1], len(mail.outbox)) == (302, 429, 5)


def test_without_a_mail_server_the_page_names_the_sres(settings) -> None:
    settings.EMAIL_HOST = ""
    answer = Client().get(PAGE)
    assert (answer.status_code, "Ask an SRE" in answer.content.decode()) == (403, True)
    assert "Forgot your password?" not in Client().get("/accounts/login/").content.decode()
