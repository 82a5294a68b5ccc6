"""Tests of HTTP headers for browsers: the Content-Security-Policy, TLS (HSTS), compression and caching."""

from __future__ import annotations

import gzip
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client

from tests.contracts.routes import routes
from tests.integration import portal_server, portal_world

pytestmark = pytest.mark.django_db
UNSAFE = ("unsafe-inline", "unsafe-eval", "unsafe-hashes", "*", "http:", "https:")


@pytest.fixture
def world(db):
    return portal_world.make()


def policy_of(answer) -> dict[str, list[str]]:
    """Return the sources of each directive in the Content-Security-Policy of an answer."""
    parts = [part.split() for part in answer["Content-Security-Policy"].split("; ")]
    return {part[0]: part[1:] for part in parts}


def test_every_html_answer_carries_the_policy_of_its_part(world) -> None:
    sre = portal_world.signed_in("sre")
    seen = 0
    plain = [f"/{route.path}" for route in routes() if "{" not in route.path and "\\" not in route.path]
    varying = ["/cells/cc/", "/jobs/cc/ubar/jfoo/", "/jobs/cc/ubar/jfoo/0/", "/cells/nowhere/", "/nowhere", "/?%00"]
    for path in [*plain, *varying]:
        if path == "/accounts/logout/":
            continue
        answer = sre.get(path)
        if not answer.content or not (path in varying or answer["Content-Type"].startswith("text/html")):
            continue
        seen += 1
        policy = policy_of(answer)
        assert policy["default-src"] == ["'none'"], path
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == ["'none'"], path
        assert policy["form-action"] == ["'self'"], path
        if path.startswith("/admin/"):
            assert "'unsafe-inline'" not in policy["script-src"] + policy["style-src"], path
        else:
            assert not [one for sources in policy.values() for one in sources if one.strip("'") in UNSAFE], path
    assert seen > 80


@pytest.mark.parametrize("path", ["/", "/accounts/login/", "/admin/", "/no/such/page", "/api/v1/cells/"])
@pytest.mark.parametrize("who", ["operator", ""])
def test_people_without_the_console_get_the_strict_policy_everywhere(world, who, path) -> None:
    client = portal_world.signed_in(who) if who else Client()
    answer = client.get(path, follow=True)
    assert not any(word in answer["Content-Security-Policy"] for word in UNSAFE)
    assert answer["Referrer-Policy"] == answer["Cross-Origin-Opener-Policy"] == "same-origin"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "camera=()" in answer["Permissions-Policy"]


def test_the_page_of_a_shell_has_a_nonce_of_its_own_each_time(world) -> None:
    sre = portal_world.signed_in("sre")
    nonces = {
        re.search(
            r"'nonce-([^']+)'", sre.get("/admin/django_celery_beat/periodictask/add/")["Content-Security-Policy"]
        )[1]
        for _ in range(2)
    }
    assert len(nonces) == 2
    assert "nonce" not in sre.get("/")["Content-Security-Policy"]


def test_pages_and_json_are_compressed_for_clients_that_can_read_it(world) -> None:
    client = portal_world.signed_in("operator")
    for path in ("/jobs/cc/ubar/jfoo/", "/api/v1/schema/"):
        packed = client.get(path, headers={"accept-encoding": "gzip, br"})
        plain = client.get(path)
        assert packed["Content-Encoding"] == "gzip"
        assert "Accept-Encoding" in packed["Vary"]
        assert len(packed.content) < len(plain.content) / 2
        assert gzip.decompress(packed.content)[:200] == plain.content[:200]


def test_the_favicon_is_found_without_a_link_to_it() -> None:
    answer = Client().get("/favicon.ico")
    assert answer.status_code == 302
    assert answer["Location"].endswith(".svg")


@pytest.mark.parametrize("path", ["/admin/scheduling/machine/", "/admin/auth/user/add/", "/admin/quota/quota/add/"])
def test_the_console_loads_no_scripts_that_it_does_not_use(world, path) -> None:
    page = portal_world.signed_in("sre").get(path).content.decode()
    assert not [name for name in ("xregexp", "urlify", "prepopulate.js") if name in page]
    assert 'rel="icon"' in page


@pytest.fixture
def https_portal(transactional_db, tmp_path: Path) -> Iterator[str]:
    with portal_server.running(tmp_path / "log", BORG_PORTAL_URL="https://borg.example") as url:
        yield url


def _get(url: str, **headers: str) -> tuple[dict[str, str], bytes]:
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return {name.lower(): value for name, value in answer.headers.items()}, answer.read()


def test_the_web_process_keeps_browsers_on_tls_and_lets_them_keep_static_files(https_portal) -> None:
    head, page = _get(f"{https_portal}/accounts/login/", X_Forwarded_Proto="https")
    assert head["strict-transport-security"] == "max-age=31536000"
    plain, _ = _get(f"{https_portal}/accounts/login/")
    assert "strict-transport-security" not in plain
    files = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.decode())
    assert len(files) > 6
    for path in files:
        head, content = _get(https_portal + path, Accept_Encoding="gzip")
        assert re.search(r"\.[0-9a-f]{12}\.", path)
        assert head["cache-control"] == "max-age=315360000, public, immutable", path
        assert head.get("content-encoding") == "gzip" or len(content) < 1_000, path


def test_hsts_can_be_switched_off(transactional_db, tmp_path) -> None:
    given = {"BORG_PORTAL_URL": "https://borg.example", "BORG_HSTS_SECONDS": "0"}
    with portal_server.running(tmp_path / "log", **given) as url:
        head, _ = _get(f"{url}/accounts/login/", X_Forwarded_Proto="https")
    assert "strict-transport-security" not in head
