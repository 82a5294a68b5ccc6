"""Sign-in through an identity provider (OpenID Connect), such as the one of a company.

    provider ─► groups of the person ─► rights (BORG_OIDC_ROLES) ─ none ─► an error page; old rights are taken away
                                           │ some
                                           ▼
    account linked before, or with the same verified e-mail address, or new ─► rights applied ─► second factor, if set

An address that the provider calls verified links an account, because the operator chose the provider and it also
decides who is an SRE. Another person may have prepared the account, so linking removes its password and its second
factors, revokes its tokens, and ends its sessions. A linked account is never linked to a second person, and only the
provider decides who signs in to it. Nobody can link an account by hand: a page for this could be used to take over an
account.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

import structlog
from allauth.account.signals import user_logged_in
from allauth.core import context
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.dispatch import receiver
from django.http import HttpRequest
from django.shortcuts import render
from django.utils.translation import gettext as _

from quota import clock
from quota.tenancy.provider_accounts import account_handed_over, rights_apply
from quota.vocabulary.errors import Rejected
from quota.vocabulary.provider_groups import GroupRoles, Rights

log = structlog.get_logger(__name__)
# After this time, the person signs in again, and the groups are read again.
SESSION_S = 12 * 3600
# How long a request to the provider may take.
PROVIDER_S = 5


class ProviderAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """The rules of this portal for people who come from the identity provider, which the library allauth applies."""

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """Link the person to an account, and apply the rights of the person's groups.

        A person without rights gets an error page. If the person came from the provider before, the portal first takes
        earlier rights away. An account that is not linked yet does not change, so its owner can still use the password.
        """
        if sociallogin.state.get("process") not in (None, "", "login"):
            raise _page(request, "not-linked", _("Accounts cannot be linked by hand. Sign out, and sign in again."))
        data = sociallogin.account.extra_data
        if len({one["sub"] for one in (data.get("id_token"), data.get("userinfo")) if one and "sub" in one}) > 1:
            self.on_authentication_error(request, None, error="the ID token and the user info are of different people")
        claims = claims_of(sociallogin)
        address = verified_address(sociallogin)
        user = sociallogin.user if sociallogin.is_existing else _with_address(address)
        rights = _decided().rights_of(groups_of(claims))
        if not rights and not sociallogin.is_existing:
            raise _page(request, "no-group", _no_group())
        with transaction.atomic():
            if user is not None and not sociallogin.is_existing:
                account_handed_over(user=user, request_id=_request_id(request))
                sociallogin.connect(request, user)
            if user is not None:
                _apply(request, user, rights)
        if not rights:
            raise _page(request, "no-group", _no_group())
        sociallogin.email_addresses = []  # addresses belong to the provider, and nobody signs in with one here
        if user is None:
            # The next person with this address would be linked to the account, so it must be proved.
            sociallogin.user.email = address

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        """Return True, because `pre_social_login` has rejected people without rights."""
        return True

    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> AbstractBaseUser:
        """Create the account of a new person, without a password, with the rights of the person's groups."""
        with transaction.atomic():
            user = cast("AbstractBaseUser", super().save_user(request, sociallogin, form))
            _apply(request, user, _decided().rights_of(groups_of(claims_of(sociallogin))))
        return user

    def get_requests_session(self) -> Any:
        """Return an HTTP client for requests to the provider. If the provider does not answer, or answers with an
        error, the person gets an error page.
        """
        import requests

        adapter, request = self, context.request

        class Session(requests.Session):
            def request(self, *arguments: Any, **more: Any) -> Any:
                try:
                    return super().request(*arguments, **{"timeout": PROVIDER_S, **more})
                except requests.RequestException as problem:
                    adapter.on_authentication_error(request, None, error="unreachable", exception=problem)

        return Session()

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None, extra_context: Any = None
    ) -> None:
        """Return an error page if the provider rejects the person, does not answer, or answers what is not valid."""
        log.warning("sign-in through the identity provider failed", error=str(error), exception=repr(exception))
        if error == "cancelled":
            detail = _("The sign-in at the identity provider was cancelled. Try again, or use another way to sign in.")
        else:
            detail = _(
                "The identity provider did not confirm the sign-in. Try again, and if it fails again, ask an SRE."
            )
        raise _page(request, "not-confirmed", detail)


def claims_of(sociallogin: Any) -> dict[str, Any]:
    """Return what the provider says about the person. What the ID token says counts more than the user info."""
    data = sociallogin.account.extra_data
    return {**(data.get("userinfo") or {}), **(data.get("id_token") or {})}


def verified_address(sociallogin: Any) -> str:
    """Return the e-mail address that the provider calls verified, or "". The ID token counts more than the user info,
    and the address and its state come from the same one of the two.
    """
    data = sociallogin.account.extra_data
    documents: list[dict[str, Any]] = [data.get("id_token") or {}, data.get("userinfo") or {}]
    said = next((one for one in documents if one.get("email")), {})
    return str(said["email"]) if said.get("email_verified") is True else ""


def groups_of(claims: dict[str, Any]) -> list[str]:
    """Return the groups of the person: the claim is a list, or a text with one group."""
    given = claims.get(settings.BORG_OIDC_GROUPS) or []
    return [str(group) for group in given] if isinstance(given, list) else [str(given)]


@receiver(user_logged_in)
def limit_session(request: HttpRequest, sociallogin: Any = None, **_: Any) -> None:
    """End the session of a person from the provider `SESSION_S` after the sign-in, so that lost groups take effect."""
    if sociallogin is not None:
        # With a number of seconds, each change of the session would start the time again.
        request.session.set_expiry(clock.now() + dt.timedelta(seconds=SESSION_S))


def _no_group() -> str:
    return _("None of your groups at the identity provider gives access to this portal. Ask an SRE.")


def _decided() -> GroupRoles:
    return GroupRoles.read(settings.BORG_OIDC_ROLES)


def _with_address(address: str) -> AbstractBaseUser | None:
    """Return the only account of a person with the verified e-mail address, or None. An account that belongs to
    somebody at the provider already is not returned, nor is an SRE's if the provider does not decide who is an SRE.
    """
    if not address:
        return None
    local = get_user_model().objects.filter(email__iexact=address, service_account=None, socialaccount=None)
    found: list[Any] = list(local[:2])
    if len(found) != 1 or ((found[0].is_staff or found[0].is_superuser) and not _decided().sre):
        return None
    return cast("AbstractBaseUser", found[0])


def _request_id(request: HttpRequest) -> str:
    return getattr(request, "borg_request_id", "")


def _apply(request: HttpRequest, user: AbstractBaseUser, rights: Rights) -> None:
    rights_apply(user=user, rights=rights, decided=_decided(), request_id=_request_id(request))


def _page(request: HttpRequest, code: str, detail: str) -> ImmediateHttpResponse:
    problem = Rejected(code, detail, status=403)
    return ImmediateHttpResponse(render(request, "sigma/rejected.html", {"problem": problem}, status=403))
