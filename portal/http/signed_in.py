"""Work for requests of signed-in people: the portal records when a session was last used."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponse

from quota.tenancy.sessions import session_seen


class SignedInMiddleware:
    """A middleware that records the last use of the session of each signed-in person."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        # Requests with a token do not read the session, so they need no query here.
        if request.session.accessed and SESSION_KEY in request.session and request.user.is_authenticated:
            session_seen(request)
        return response
