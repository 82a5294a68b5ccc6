"""Tests of the limits on guessing passwords, at the sign-in form and at `POST /api/v1/login/`."""

from __future__ import annotations

import contextlib
import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client

from quota import clock
from quota.tenancy.sign_in_limits import ACCOUNT, ADDRESS, FORGOTTEN_AFTER_S, PAIR, TooManyAttempts, check_limited
from tests.integration.portal_world import PASSWORD, person

pytestmark = pytest.mark.django_db
HOME, ELSEWHERE = "192.0.2.1", "198.51.100.7"


@pytest.fixture(autouse=True)
def ann():
    cache.clear()
    return person("ann")


def by_form(password: str, *, address: str = HOME, name: str = "ann") -> HttpResponse:
    return Client(REMOTE_ADDR=address).post("/accounts/login/", {"login": name, "password": password})


def by_api(password: str, *, address: str = HOME, name: str = "ann") -> HttpResponse:
    body = {"username": name, "password": password, "name": "laptop"}
    return Client(REMOTE_ADDR=address).post("/api/v1/login/", body, content_type="application/json")


DOORS = pytest.mark.parametrize(("door", "right", "wrong"), [(by_form, 302, 200), (by_api, 201, 401)])


def guess(times: int, *, name: str = "ann", address: str = HOME) -> dt.datetime:
    """Make `times` wrong attempts, each as soon as the limits let it through. Return the time of the last one."""
    now = clock.now()
    for _ in range(times):
        for _again in range(2):
            with clock.at(now):
                try:
                    check_limited(name, address, lambda: None)
                    break
                except TooManyAttempts as problem:
                    now += dt.timedelta(seconds=problem.figures["retry_after_s"])
    return now


@DOORS
def test_wrong_attempts_are_slowed_down_and_the_answer_says_for_how_long(door, right, wrong) -> None:
    guess(PAIR.free - 1)
    assert door("wrong").status_code == wrong
    refused = door(PASSWORD)
    assert (refused.status_code, refused["Retry-After"]) == (429, "1")
    assert "too many wrong attempts" in refused.content.decode()
    with clock.at(clock.now() + dt.timedelta(seconds=2)):
        assert door(PASSWORD).status_code == right


def test_both_doors_count_together() -> None:
    guess(PAIR.free - 2)
    by_form("wrong")
    by_api("wrong")
    assert (by_form(PASSWORD).status_code, by_api(PASSWORD).status_code) == (429, 429)


@pytest.mark.parametrize("name", ["ann", "ANN", " ann ", "nobody"])
def test_every_spelling_counts_and_unknown_names_answer_alike(name: str) -> None:
    guess(PAIR.free, name=name.strip().lower())
    for door in (by_form, by_api):
        refused = door("wrong", name=name)
        assert (refused.status_code, refused["Retry-After"]) == (429, "1")


@DOORS
def test_the_right_password_waits_a_minute_at_most(door, right, wrong) -> None:
    last = guess(100)
    with clock.at(last + dt.timedelta(seconds=PAIR.longest_s)):
        assert door(PASSWORD).status_code == right


@DOORS
def test_attempts_from_elsewhere_do_not_lock_the_owner_out(door, right, wrong) -> None:
    assert door(PASSWORD).status_code == right
    for number in range(40):
        guess(30, address=f"198.51.100.{number}")
    assert door("wrong", address="203.0.113.9").status_code == 429, "the account as a whole is slowed down"
    assert door("wrong").status_code == wrong
    assert door(PASSWORD).status_code == right


@DOORS
def test_one_address_that_tries_many_accounts_is_slowed_down(door, right, wrong) -> None:
    assert by_form(PASSWORD).status_code == 302
    for number in range(ADDRESS.free):
        guess(1, name=f"user{number}")
    assert door("wrong", name="one more").status_code == 429
    assert door(PASSWORD).status_code == right, "who signed in from here before does not wait"


def test_a_sign_in_takes_back_no_attempt_but_its_own() -> None:
    """A successful sign-in does not delete the wrong attempts that the same address has made for other accounts."""
    person("eve")
    for number in range(ADDRESS.free - 1):
        guess(1, name=f"user{number}")
    assert by_form(PASSWORD, name="eve").status_code == 302
    guess(1, name="victim")
    assert by_form("wrong", name="victim").status_code == 429


def test_wrong_attempts_in_parallel_gain_nothing() -> None:
    started: list[int] = []

    def attempt(_number: int) -> None:
        with contextlib.suppress(TooManyAttempts):
            check_limited("ann", HOME, lambda: started.append(1))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(attempt, range(100)))
    assert len(started) == PAIR.free


@DOORS
def test_forty_accounts_from_forty_addresses_meet_no_limit(door, right, wrong) -> None:
    answers = [door("wrong", name=f"user{n}", address=f"127.0.0.{n + 1}").status_code for n in range(40)]
    assert answers == [wrong] * 40


def test_a_check_that_fails_by_itself_counts_as_no_attempt() -> None:
    def broken() -> None:
        raise ConnectionError("the database is away")

    for _ in range(PAIR.free * 2):
        with pytest.raises(ConnectionError):
            check_limited("ann", HOME, broken)


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    for number in range(PAIR.free):
        check_limited("ann", f"2001:db8::{number:x}", lambda: None)
    with pytest.raises(TooManyAttempts):
        check_limited("ann", "2001:db8::ffff", lambda: None)
    check_limited("ann", "2001:db8:0:1::1", lambda: None)


def test_a_header_of_the_client_does_not_choose_the_address() -> None:
    guess(PAIR.free)
    client = Client(REMOTE_ADDR=HOME, headers={"x-forwarded-for": ELSEWHERE})
    assert client.post("/accounts/login/", {"login": "ann", "password": "wrong"}).status_code == 429


def test_the_waits_double_up_to_their_bound() -> None:
    assert [PAIR.wait_s(PAIR.free + more) for more in (-1, 0, 1, 2, 5, 6, 10_000)] == [0, 1, 2, 4, 32, 60, 60]
    assert ACCOUNT.wait_s(10_000) == 30 < FORGOTTEN_AFTER_S
