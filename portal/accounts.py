"""How people get in: an SRE makes their account, or an owner invites them. There is no other sign-up, and no setting
for an identity provider (OIDC, SAML) yet. Service accounts have tokens and never sign in."""

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
from quota.tenancy.sign_in import TOO_MANY, TooManyAttempts, address_of, check_limited
from quota.vocabulary.errors import Rejected

# Of the session: the secret of the invitation whose link was opened.
INVITATION = "invitation"


def invited(request: HttpRequest) -> Invitation | None:
    """The open invitation that this browser has followed."""
    try:
        return invitation_of(str(request.session.get(INVITATION, "")))
    except Rejected:
        return None


class PasswordBackend(AuthenticationBackend):  # type: ignore[misc]
    """Checks a password once: the backends after this one would only hash the same wrong password again."""

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> AbstractBaseUser:
        user = super().authenticate(request, **credentials)
        if user is None:
            raise PermissionDenied
        return cast("AbstractBaseUser", user)


class ClosedSignupAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return invited(request) is not None

    def clean_username(self, username: str, shallow: bool = False) -> str:
        """`name@tenant` are service accounts."""
        if "@" in username:
            raise forms.ValidationError(_("A user name has no @; programs' names have."))
        return str(super().clean_username(username, shallow))

    def save_user(
        self, request: HttpRequest, user: AbstractBaseUser, form: forms.BaseForm, commit: bool = True
    ) -> AbstractBaseUser:
        """Whoever holds the link reads that address. Raises `Rejected`, and the caller's transaction ends."""
        secret = str(request.session.get(INVITATION, ""))
        user = super().save_user(request, user, form, commit=False)
        user.email = invitation_of(secret).email  # type: ignore[attr-defined]
        user.save()
        principal = principal_of_user(user, request_id=getattr(request, "borg_request_id", ""))
        invitation_accept(principal=principal, user=user, secret=secret)
        request.session.pop(INVITATION, None)
        return user

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """`authenticate` applies the limits of this portal in place of allauth's."""

    def authenticate(self, request: HttpRequest, **credentials: Any) -> AbstractBaseUser | None:
        """The user, or None if the password is wrong; also for reauthentication. Raises `ValidationError` of the form,
        with code `too-many-attempts`, while the waiting time after wrong attempts is not over."""
        check = partial(super().authenticate, request, **credentials)
        try:
            return check_limited(str(credentials.get("username", "")), address_of(request), check)
        except TooManyAttempts as problem:
            seconds = problem.figures["retry_after_s"]
            told = ngettext(
                "There were too many wrong attempts. Try again in %(seconds)d second.",
                "There were too many wrong attempts. Try again in %(seconds)d seconds.",
                seconds,
            )
            raise forms.ValidationError(told, code=problem.code, params={"seconds": seconds}) from problem

    def pre_login(self, request: HttpRequest, user: AbstractBaseUser, **how: Any) -> HttpResponse | None:
        if ServiceAccount.objects.filter(user_id=user.pk).exists():
            told = _("%s is a service account: it has tokens, and never signs in.") % user.get_username()
            problem = Rejected("service-account", told, status=403)
            return render(request, "sigma/refused.html", {"problem": problem}, status=403)
        return cast("HttpResponse | None", super().pre_login(request, user, **how))


class SignInView(LoginView):  # type: ignore[misc]
    template_name = "sigma/login.html"

    def form_invalid(self, form: forms.BaseForm) -> HttpResponse:
        """The form again; with status 429 and `Retry-After` while the password is not looked at."""
        answer = super().form_invalid(form)
        for error in form.non_field_errors().as_data():
            if error.code == TOO_MANY:
                answer.status_code = TooManyAttempts.status
                answer["Retry-After"] = str(error.params["seconds"])  # type: ignore[index]
        return cast("HttpResponse", answer)


class PasswordForm(ChangePasswordForm):  # type: ignore[misc]
    """A new password; on request it also revokes the tokens, which do not depend on the password."""

    revoke_tokens = forms.BooleanField(required=False, label=gettext_lazy("Also revoke all my tokens"))


class PasswordView(PasswordChangeView):  # type: ignore[misc]
    """Changing one's own password, which ends all other sessions of the user, open pages and shells included."""

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
                told = ngettext("%d token is revoked.", "%d tokens are revoked.", count) % count
                messages.success(self.request, told)
            elif count := tokens_in_force().filter(user_id=user.pk).count():
                told = ngettext(
                    "%d token still works with the new password.",
                    "%d tokens still work with the new password.",
                    count,
                )
                messages.warning(self.request, told % count)
        return cast("HttpResponse", answer)
