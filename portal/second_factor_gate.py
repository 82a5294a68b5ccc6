"""Middleware: SREs must use a second factor, and the last use of a session is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlencode

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from portal.http.errors import for_programs, problem_document
from quota.tenancy.second_factor import SecondFactorNeeded, Step, second_factors_of, step_needed
from quota.tenancy.sessions import session_seen

_ALWAYS = ("/accounts/login/", "/accounts/logout/", "/favicon.ico")
# The pages that stay open before each step. With a password alone, a session must not set up a second factor beside the
# one that the person has: it would then confirm itself.
_OPEN = {
    Step.SET_UP: (*_ALWAYS, "/accounts/2fa/", "/accounts/reauthenticate/"),
    Step.CONFIRM: (*_ALWAYS, "/accounts/2fa/reauthenticate/", "/accounts/2fa/webauthn/reauthenticate/"),
}


class SecondFactorMiddleware:
    """A middleware for requests with a session.

    If an SRE must first set up or use a second factor, people get a redirect to the page for it, and programs the
    problem `second-factor-needed`. For all other requests, the middleware records the last use of the session.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if _uses_session(request) and (step := step_needed(request.user, request.session)):
            if not request.path.startswith(_OPEN[step]):
                return _answer(request, step)
            cast(Any, request).borg_second_factor = step  # the page explains why it is shown
        response = self.get_response(request)
        # Requests with a token do not read the session, so they need no query here.
        if request.session.accessed and SESSION_KEY in request.session and request.user.is_authenticated:
            session_seen(request)
        return response


def _uses_session(request: HttpRequest) -> bool:
    """Return whether the session may give access to what is requested. The REST API ignores it beside a token."""
    if not settings.BORG_SRE_SECOND_FACTOR or settings.SESSION_COOKIE_NAME not in request.COOKIES:
        return False
    return not (for_programs(request.path) and "Authorization" in request.headers)


def _answer(request: HttpRequest, step: Step) -> HttpResponse:
    if for_programs(request.path):
        return problem_document(SecondFactorNeeded(step), getattr(request, "borg_request_id", ""))
    if step is Step.SET_UP:
        return redirect("mfa_activate_totp")
    app = Authenticator.Type.TOTP in second_factors_of(request.user)
    page = reverse("mfa_reauthenticate" if app else "mfa_reauthenticate_webauthn")
    return redirect(f"{page}?{urlencode({'next': request.get_full_path()})}")
