"""Sign-in and accounts of people. An SRE creates an account, or an owner of a tenant sends an invitation.

People cannot sign up without an invitation. Service accounts have tokens and cannot sign in.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.app_settings import REAUTHENTICATION_TIMEOUT
from allauth.account.auth_backends import AuthenticationBackend
from allauth.account.authentication import get_authentication_records
from allauth.account.forms import ChangePasswordForm, ResetPasswordForm
from allauth.account.internal.flows.login import record_authentication
from allauth.account.views import LoginView, PasswordChangeView, PasswordResetView
from allauth.core import context as allauth_context
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.signals import authenticator_added
from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from quota.models import Invitation, ServiceAccount
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.invitations import invitation_accept, invitation_of
from quota.tenancy.provider_accounts import from_provider
from quota.tenancy.second_factor import enforced_for, second_factors_of
from quota.tenancy.sessions import recorded_address
from quota.tenancy.sign_in_limits import TOO_MANY, TooManyAttempts, address_of, check_limited
from quota.tenancy.tokens import tokens_in_force, tokens_revoke
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

    def is_reauthentication_required(self, *, app: str, **more: Any) -> bool:
        """Return whether a person must confirm the password or the second factor before a change of the sign-in.

        A person who has signed in within the last minutes need not confirm it.
        """
        request = allauth_context.request
        records = get_authentication_records(request, request.user)
        if records and time.time() - records[-1]["at"] < REAUTHENTICATION_TIMEOUT:
            return False
        return bool(super().is_reauthentication_required(app=app, **more))

    def pre_login(self, request: HttpRequest, user: AbstractBaseUser, **how: Any) -> HttpResponse | None:
        """Return an error page for a service account, because service accounts never sign in, and for a person of the
        identity provider who signs in elsewhere, such as with a passkey. For other people, return what allauth returns.
        """
        if ServiceAccount.objects.filter(user_id=user.pk).exists():
            detail = _("%s is a service account, which never signs in. Use one of its tokens instead.")
            problem = Rejected("service-account", detail % user.get_username(), status=403)
            return render(request, "sigma/rejected.html", {"problem": problem}, status=403)
        if "sociallogin" not in (how.get("signal_kwargs") or {}) and from_provider(user):
            detail = _(
                "The account %s signs in only through the identity provider. Use its link on the page to sign in."
            )
            problem = Rejected("at-the-provider", detail % user.get_username(), status=403)
            return render(request, "sigma/rejected.html", {"problem": problem}, status=403)
        return cast("HttpResponse | None", super().pre_login(request, user, **how))


class SecondFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """The rules of this portal for second factors, which the library allauth applies."""

    def get_totp_issuer(self) -> str:
        """Return the name under which an app shows the codes."""
        return f"Borg Portal {urlsplit(settings.PORTAL_URL).hostname}"

    def generate_authenticator_name(self, user: AbstractBaseUser, type: str) -> str:
        """Return the name that the form for a new passkey suggests."""
        count = Authenticator.objects.filter(user_id=user.pk, type=type).count()
        return f"{_('Passkey')} {count + 1}"

    def can_delete_authenticator(self, authenticator: Authenticator) -> bool:
        """Return False for the last second factor of an SRE who must have one."""
        user = authenticator.user
        return not enforced_for(user) or len(second_factors_of(user)) > 1


@receiver(authenticator_added)
def confirm_session(request: HttpRequest, user: AbstractBaseUser, authenticator: Authenticator, **_: Any) -> None:
    """Record that the session of this request used the second factor that was just set up, because setting it up
    proved it.
    """
    record_authentication(request, user, "mfa", id=authenticator.pk, type=authenticator.type)


class SignInView(LoginView):  # type: ignore[misc]
    """The page on which people sign in."""

    template_name = "sigma/login.html"

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        """Return the context of the page, with the link to the identity provider if there is one."""
        shown = {"provider_name": settings.BORG_OIDC_NAME, "sends_mail": bool(settings.EMAIL_HOST)}
        context = {**super().get_context_data(**more), **shown}
        if settings.BORG_OIDC_URL:
            query = urlencode({"next": self.request.GET.get("next", "/")})
            context["provider_url"] = f"{reverse('openid_connect_login', args=['company'])}?{query}"
        return context

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


class ForgottenPasswordForm(ResetPasswordForm):  # type: ignore[misc]
    """The form for a link to set a new password. Accounts without a password, such as those of an identity provider,
    get no link.
    """

    def clean_email(self) -> str:
        address = str(super().clean_email())
        self.users: list[Any] = [user for user in self.users if user.has_usable_password()]
        return address


def forgotten_password(request: HttpRequest) -> HttpResponse:
    """Mail a link to set a new password. Without a mail server, return a page that names the SREs.

    The answer does not show whether an account has the address. The link works once, for an hour, and a new password
    ends all sessions. A second factor is still needed to sign in.
    """
    if settings.EMAIL_HOST:
        return cast("HttpResponse", PasswordResetView.as_view()(request))
    detail = _("This portal sends no mail. Ask an SRE for a new password.")
    problem = Rejected("by-an-sre", detail, status=403)
    return render(request, "sigma/rejected.html", {"problem": problem}, status=403)


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
