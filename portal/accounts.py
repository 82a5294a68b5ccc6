"""Sign-in and accounts of people. An SRE creates an account, or an owner of a tenant sends an invitation.

People cannot sign up without an invitation, and there is no identity provider (OIDC, SAML) yet. Service accounts have
tokens and cannot sign in.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.auth_backends import AuthenticationBackend
from allauth.account.forms import ChangePasswordForm
from allauth.account.views import LoginView, PasswordChangeView
from django import forms
from django.contrib import messages
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from quota.models import Invitation, ServiceAccount
from quota.tenancy.access import principal_of_user, tokens_in_force, tokens_revoke
from quota.tenancy.invitations import invitation_accept, invitation_of
from quota.tenancy.sessions import recorded_address
from quota.tenancy.sign_in import TOO_MANY, TooManyAttempts, address_of, check_limited
from quota.vocabulary.errors import Rejected

# The key in the session for the secret of the opened invitation.
INVITATION = "invitation"


def invited(request: HttpRequest) -> Invitation | None:
    """Return the invitation whose link was opened in this browser. Return None if no link was opened, or if the
    invitation is no longer valid.
    """
    try:
        return invitation_of(str(request.session.get(INVITATION, "")))
    except Rejected:
        return None


class PasswordBackend(AuthenticationBackend):  # type: ignore[misc]
    """The part of the library allauth that checks passwords.

    If the password is wrong, the sign-in ends, so that no other backend hashes the password again.
    """

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> AbstractBaseUser:
        user = super().authenticate(request, **credentials)
        if user is None:
            raise PermissionDenied
        return cast("AbstractBaseUser", user)


class ClosedSignupAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """The rules of this portal for sign-up and sign-in, which the library allauth applies. People get accounts only by
    invitation. After too many wrong passwords, a person must wait.
    """

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the address of the client, which uvicorn takes from trusted proxies only."""
        return recorded_address(request)

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return invited(request) is not None

    def clean_username(self, username: str, shallow: bool = False) -> str:
        """Return a valid user name. Reject a name with @, because only the names of service accounts contain @
        (`name@tenant`).
        """
        if "@" in username:
            raise forms.ValidationError(
                _("A user name must not contain @, which is reserved for service accounts. Choose another name.")
            )
        return str(super().clean_username(username, shallow))

    def save_user(
        self, request: HttpRequest, user: AbstractBaseUser, form: forms.BaseForm, commit: bool = True
    ) -> AbstractBaseUser:
        """Save the new user with the e-mail address of the invitation, and accept the invitation.

        Raises `Rejected` if the invitation is no longer valid. The transaction of the caller is then rolled back.
        """
        secret = str(request.session.get(INVITATION, ""))
        user = super().save_user(request, user, form, commit=False)
        user.email = invitation_of(secret).email  # type: ignore[attr-defined]
        user.save()
        principal = principal_of_user(user, request_id=getattr(request, "borg_request_id", ""))
        invitation_accept(principal=principal, user=user, secret=secret)
        request.session.pop(INVITATION, None)
        return user

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Do nothing, so that allauth's own limits do not apply. `authenticate` applies the limits of this portal."""

    def authenticate(self, request: HttpRequest, **credentials: Any) -> AbstractBaseUser | None:
        """Return the user, or None if the password is wrong.

        allauth calls this method when a person signs in or confirms the password again. After too many wrong attempts,
        the method raises `ValidationError` with the code `too-many-attempts` until a waiting time has ended.
        """
        check = partial(super().authenticate, request, **credentials)
        try:
            return check_limited(str(credentials.get("username", "")), address_of(request), check)
        except TooManyAttempts as problem:
            seconds = problem.figures["retry_after_s"]
            text = ngettext(
                "There were too many wrong attempts to enter a password. Try again in %(seconds)d second.",
                "There were too many wrong attempts to enter a password. Try again in %(seconds)d seconds.",
                seconds,
            )
            raise forms.ValidationError(text, code=problem.code, params={"seconds": seconds}) from problem

    def pre_login(self, request: HttpRequest, user: AbstractBaseUser, **how: Any) -> HttpResponse | None:
        """Return an error page for a service account, because service accounts never sign in. For people, return what
        allauth returns.
        """
        if ServiceAccount.objects.filter(user_id=user.pk).exists():
            detail = _("%s is a service account, which never signs in. Use one of its tokens instead.")
            problem = Rejected("service-account", detail % user.get_username(), status=403)
            return render(request, "sigma/rejected.html", {"problem": problem}, status=403)
        return cast("HttpResponse | None", super().pre_login(request, user, **how))


class SignInView(LoginView):  # type: ignore[misc]
    """The page on which people sign in."""

    template_name = "sigma/login.html"

    def form_invalid(self, form: forms.BaseForm) -> HttpResponse:
        """Return the form with its errors. After too many attempts, the response has the status 429 and the header
        `Retry-After`.
        """
        answer = super().form_invalid(form)
        for error in form.non_field_errors().as_data():
            if error.code == TOO_MANY:
                answer.status_code = TooManyAttempts.status
                answer["Retry-After"] = str(error.params["seconds"])  # type: ignore[index]
        return cast("HttpResponse", answer)


class PasswordForm(ChangePasswordForm):  # type: ignore[misc]
    """The form for a new password. It has a checkbox to revoke all tokens of the user, because a new password does not
    revoke them.
    """

    revoke_tokens = forms.BooleanField(required=False, label=gettext_lazy("Also revoke all my tokens"))


class PasswordView(PasswordChangeView):  # type: ignore[misc]
    """The page on which people change their password.

    A new password ends all other sessions of the user, and the open live pages and shells of these sessions.
    """

    template_name = "sigma/password.html"
    form_class = PasswordForm
    tokens_shown = 20

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        tokens = tokens_in_force().filter(user_id=self.request.user.pk).order_by("-id")
        shown = {"tokens": tokens[: self.tokens_shown], "tokens_count": tokens.count()}
        return {**super().get_context_data(**more), **shown}

    def form_valid(self, form: PasswordForm) -> HttpResponse:
        user = self.request.user
        with transaction.atomic():
            answer = super().form_valid(form)
            if form.cleaned_data["revoke_tokens"]:
                principal = principal_of_user(user, request_id=self.request.borg_request_id)
                count = tokens_revoke(principal=principal, user=user)
                text = ngettext("%d of your tokens was revoked.", "%d of your tokens were revoked.", count) % count
                messages.success(self.request, text)
            elif count := tokens_in_force().filter(user_id=user.pk).count():
                text = ngettext(
                    "%d of your tokens is still valid. A new password does not revoke tokens.",
                    "%d of your tokens are still valid. A new password does not revoke tokens.",
                    count,
                )
                messages.warning(self.request, text % count)
        return cast("HttpResponse", answer)
