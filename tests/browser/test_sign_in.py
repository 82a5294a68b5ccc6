"""Tests of the ways to sign in, in a real browser: a passkey, and pages that fit their screen."""

from __future__ import annotations

from allauth.mfa.models import Authenticator
from django.contrib.auth import get_user_model
from playwright.sync_api import Page, expect

from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import system
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at


def give_passkey_device(page: Page) -> None:
    """Give the browser a device for passkeys, whose owner is always present and verified."""
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    device = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    session.send("WebAuthn.addVirtualAuthenticator", {"options": device})


def test_a_person_adds_a_passkey_and_signs_in_with_it_alone(page: Page, portal: str) -> None:
    home = portal.replace("127.0.0.1", "localhost")  # passkeys belong to a name, not to an address
    give_passkey_device(page)
    page.goto(f"{home}/accounts/login/")
    page.get_by_label("Username").fill("operator")
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(f"{home}/")
    page.goto(f"{home}/sign-in/")
    page.get_by_role("link", name="Add").click()
    page.get_by_label("Name of the passkey").fill("laptop")
    page.get_by_label("Also sign in with this passkey alone").check()
    page.get_by_role("button", name="Add", exact=True).click()
    page.wait_for_url("**/recovery-codes/")
    assert Authenticator.objects.filter(type=Authenticator.Type.WEBAUTHN).count() == 1
    page.context.clear_cookies()
    page.goto(f"{home}/accounts/login/?next=/tokens/")
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url(f"{home}/tokens/")
    expect(page.locator(".who-name")).to_have_text("operator")


def test_pages_of_sign_in_fit_their_screen(page) -> None:
    page.goto("/accounts/login/")
    look_at(page, "login")
    user = get_user_model().objects.get(username="operator")
    for name in ("laptop", "nightly build"):
        token_issue(principal=system("test"), user=user, name=name, scopes=["read", "write"])
    sign_in(page)
    for name, path in {
        "sign-in": "/sign-in/",
        "tokens": "/tokens/",
        "sign-in-app": "/accounts/2fa/totp/activate/",
        "sign-in-passkey": "/accounts/2fa/webauthn/add/",
    }.items():
        page.goto(path)
        if name == "tokens":
            page.get_by_text("Rotate…").first.click()
        look_at(page, name)
