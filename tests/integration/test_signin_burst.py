"""Tests of many sign-ins at once, each with a hash of 0.4 s of CPU: all other requests are answered meanwhile."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.sessions.backends.db import SessionStore

from tests.integration import portal_server
from tests.quickness import stretch

pytestmark = pytest.mark.django_db(transaction=True)

ACCOUNTS = 40
HEALTH_S, PAGE_S = 1.0, 2.0


def test_a_burst_of_wrong_passwords_slows_nothing_else(tmp_path: Path) -> None:
    cookie, slower = _people(), stretch()
    # Sessions are signed with the key of these tests.
    environment = {"BORG_LOG_LEVEL": "WARNING", "BORG_SECRET_KEY": settings.SECRET_KEY}
    with portal_server.running(tmp_path / "web.log", **environment) as url:
        where = str(urlsplit(url).netloc)
        assert _get(where, "/", cookie)[0] == 200  # the first request loads what later ones find ready
        stop = threading.Event()
        with ThreadPoolExecutor(ACCOUNTS + 2) as threads:
            health = threads.submit(_watch, where, "/healthz", "", stop)
            pages = threads.submit(_watch, where, "/", cookie, stop)
            tries = [threads.submit(_sign_in, where, number) for number in range(ACCOUNTS)]
            try:
                answers = [each.result(120) for each in tries]
            finally:
                stop.set()
            health_s, pages_s = health.result(60), pages.result(60)
    told = f"healthz {_reported(health_s)}, pages {_reported(pages_s)}, answers {sorted(answers)}"
    print(told)
    assert set(answers) <= {200, 401, 503}, told  # 200: the form is shown again
    assert len([status for status in answers if status != 503]) >= 5, told
    assert max(health_s) < HEALTH_S * slower, told
    assert max(pages_s) < PAGE_S * slower, told


def _people() -> str:
    """Create 40 accounts with real password hashes, and return the session cookie of one more user who is signed in."""
    users = get_user_model().objects
    hashed = PBKDF2PasswordHasher().encode("a right password", "salt" * 6)
    users.bulk_create(get_user_model()(username=f"user{n}", password=hashed) for n in range(ACCOUNTS))
    ann = users.create(username="ann", password=hashed)
    session = SessionStore()
    session["_auth_user_id"] = str(ann.pk)
    session["_auth_user_backend"] = "portal.accounts.PasswordBackend"
    session["_auth_user_hash"] = ann.get_session_auth_hash()
    session.create()
    return f"sessionid={session.session_key}"


def _sign_in(where: str, number: int) -> int:
    """Send a wrong password, for odd numbers by REST and else by the form, and return the status of the answer."""
    source = f"127.0.0.{number + 2}"
    if number % 2:
        body = json.dumps({"username": f"user{number}", "password": "wrong", "name": "x"})
        return _post(where, "/api/v1/login/", body, {"Content-Type": "application/json"}, source)
    status, cookies, page = _get(where, "/accounts/login/", "", source)
    assert status == 200
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    form = {"login": f"user{number}", "password": "wrong", "csrfmiddlewaretoken": token[1]}
    cookie = re.search(r"csrftoken=[^;]+", cookies)
    assert cookie is not None
    kind = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie[0]}
    return _post(where, "/accounts/login/", urlencode(form), kind, source)


def _watch(where: str, path: str, cookie: str, stop: threading.Event) -> list[float]:
    """Request a page again and again until `stop` is set. Return how long each answer took, in seconds."""
    took = []
    while not stop.wait(0.05):
        began = time.monotonic()
        status, _, _ = _get(where, path, cookie)
        took.append(time.monotonic() - began)
        assert status == 200
    return took


def _get(where: str, path: str, cookie: str, source: str = "127.0.0.1") -> tuple[int, str, str]:
    """Send a GET request from the address `source`. Return the status, the cookies and the body of the answer."""
    link = http.client.HTTPConnection(where, timeout=60, source_address=(source, 0))
    try:
        link.request("GET", path, headers={"Cookie": cookie} if cookie else {})
        answer = link.getresponse()
        cookies = "; ".join(answer.headers.get_all("Set-Cookie") or [])
        return answer.status, cookies, answer.read().decode()
    finally:
        link.close()


def _post(where: str, path: str, body: str, headers: dict[str, str], source: str) -> int:
    link = http.client.HTTPConnection(where, timeout=90, source_address=(source, 0))
    try:
        link.request("POST", path, body, headers)
        answer = link.getresponse()
        answer.read()
        if answer.status == 503:
            assert answer.headers["Retry-After"]
        return answer.status
    finally:
        link.close()


def _reported(took: list[float]) -> str:
    return f"{len(took)} answers, slowest {max(took):.2f} s"
