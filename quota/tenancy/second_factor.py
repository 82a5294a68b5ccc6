"""Decides whether a person must set up or use a second factor: the codes of an app, or a passkey.

    setting BORG_SRE_SECOND_FACTOR on, and the person is an SRE
        session began or was confirmed with a second factor ──► nothing is needed
        the person has no second factor ──────────────────────► SET_UP
        otherwise ────────────────────────────────────────────► CONFIRM

The portal's pages, its REST API with a session, and WebSockets of a session answer nothing else until then. Tokens are
not affected: a program cannot type a code, and a token is itself proof of an earlier sign-in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

from allauth.account.authentication import get_authentication_records
from allauth.mfa.base.forms import BaseAuthenticateForm
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.sessions.models import Session

from quota import records
from quota.records import RecordEntry
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, require

NEEDED = "second-factor-needed"


class Step(StrEnum):
    """What an SRE must do before anything else."""

    SET_UP = "set-up"
    CONFIRM = "confirm"


class SecondFactorNeeded(Rejected):
    """The rejection of a request from a person who must first use or set up a second factor in the portal."""

    status = 403

    def __init__(self, step: Step) -> None:
        todo = {
            Step.SET_UP: "SREs need a second factor in this portal; sign in to the portal and set it up",
            Step.CONFIRM: "the account has a second factor, so a password is not enough; give a code of the app or a"
            " recovery code, or sign in to the portal and create a token on the page Tokens",
        }
        super().__init__(NEEDED, todo[step], figures={"step": step.value})


def second_factors_of(user: Any) -> list[str]:
    """Return the kinds of second factors that `user` has, with one entry for each app or passkey."""
    kinds = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)
    return list(Authenticator.objects.filter(user_id=user.pk, type__in=kinds).values_list("type", flat=True))


def enforced_for(user: Any) -> bool:
    """Return whether `user` must have a second factor."""
    return bool(settings.BORG_SRE_SECOND_FACTOR and user.is_staff)


def step_needed(user: Any, session: Mapping[str, Any]) -> Step | None:
    """Return what `user` must do before the session gives access. Queries the database only if something is needed."""
    if not enforced_for(user) or confirmed(user, session):
        return None
    return Step.CONFIRM if second_factors_of(user) else Step.SET_UP


def confirmed(user: Any, session: Mapping[str, Any]) -> bool:
    """Return whether the session began or was confirmed with a second factor of `user`."""
    records: list[dict[str, Any]] = get_authentication_records(SimpleNamespace(session=session), user)
    return any(record.get("method") == "mfa" for record in records)


def check_code(user: Any, code: str) -> None:
    """Check the code with which a person signs in beside the password, outside of the pages.

    Raises `SecondFactorNeeded` if the code is missing, or if the person must set up a second factor first. Raises
    `Rejected` if the code is wrong, or after too many wrong codes. A person without a second factor needs no code.
    """
    factors = second_factors_of(user)
    if not factors:
        if enforced_for(user):
            raise SecondFactorNeeded(Step.SET_UP)
        return
    if not code:
        raise SecondFactorNeeded(Step.CONFIRM)
    form = BaseAuthenticateForm(data={"code": code}, user=user)
    if not form.is_valid():
        detail = " ".join(form.errors.get("code", []))
        raise Rejected(
            "wrong-code",
            f"the code of the second factor is not accepted: {detail} Give the current code of your authenticator app,"
            " or an unused recovery code",
            fields={"code": detail},
            status=401,
        )
    form.authenticator.record_usage()


def second_factors_remove(*, principal: Principal, users: Iterable[Any]) -> int:
    """Remove all second factors of people who have lost them, and end the sessions of these people. Return the number
    of removed apps, passkeys and lists of recovery codes.

    Each person then signs in with the password only, and sets up a new second factor. Raises `Forbidden` unless the
    caller is an SRE.
    """
    require(principal, Action.PLATFORM_ADMIN)
    people = {user.pk: user.get_username() for user in users}
    with records.write(principal) as entry:
        return second_factors_drop(entry, people)


def second_factors_drop(entry: RecordEntry, people: Mapping[int, str]) -> int:
    """Remove the second factors and the sessions of `people` in the caller's transaction. Return the number of removed
    apps, passkeys and lists of recovery codes. `people`: user names by the ids of the users.
    """
    removed: int = Authenticator.objects.filter(user_id__in=people).delete()[0]
    recorded = UserSession.objects.filter(user_id__in=people)
    Session.objects.filter(session_key__in=recorded.values("session_key")).delete()
    recorded.delete()
    for name in sorted(people.values()):
        entry.append("second-factor.removed", user=name)
    return removed
