"""The page of the ways in which a person signs in, and of the sessions: where the person is signed in now."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal.sigma.frame.page import page, rendered, whole_number
from quota.tenancy.second_factor import enforced_for, second_factors_of
from quota.tenancy.sessions import session_end, sessions_end, sessions_of
from quota.vocabulary.browsers import browser_of
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Principal


@never_cache
@page
def sign_in(request: HttpRequest, principal: Principal) -> HttpResponse:
    user: Any = request.user
    kinds = second_factors_of(user)
    sessions = [
        {"row": row, "browser": browser_of(row.user_agent), "current": row.session_key == request.session.session_key}
        for row in sessions_of(principal, user)
    ]
    context = {
        "has_password": user.has_usable_password(),
        "has_app": Authenticator.Type.TOTP in kinds,
        "passkeys": kinds.count(Authenticator.Type.WEBAUTHN),
        "required": enforced_for(user),
        "sessions": sessions,
    }
    return rendered(request, "sigma/sign_in.html", context)


@page
@require_POST
def end(request: HttpRequest, principal: Principal) -> HttpResponse:
    """End the session that the form names, or all sessions except the one of this request."""
    user: Any = request.user
    if request.POST.get("session") == "others":
        count = sessions_end(principal=principal, user=user, keep=request.session.session_key)
        text = ngettext("%d session was ended.", "%d sessions were ended.", count) % count
    else:
        number = whole_number(request.POST.get("session", ""))
        if number is None:
            raise invalid("session", _("the value is not the number of a session; choose a session in the list"))
        session_end(principal=principal, number=number)
        text = _("The session was ended.")
    messages.success(request, text)
    return redirect("sigma:sign-in")
