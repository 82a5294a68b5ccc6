"""Functions that return the user or task that opens a WebSocket or sends a long poll.

The functions accept the same tokens, task identities and sessions as the REST interface.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import HASH_SESSION_KEY, get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.utils.crypto import constant_time_compare

from quota.tenancy.authentication import InvalidToken, principal_of_token, principal_of_user
from quota.tenancy.second_factor import step_needed
from quota.vocabulary.errors import Forbidden
from quota.vocabulary.permissions import Principal
from scheduling.identity.principals import principal_of_identity
from scheduling.identity.task_tokens import BadIdentity, looks_like_one


def principal_of(scope: dict[str, Any]) -> Principal | None:
    """Return the user or task behind a connection. Return None if nobody is signed in and no valid token is given.
    Queries the database.
    """
    header = dict(scope["headers"]).get(b"authorization")
    if header is not None:
        scheme, _, secret = header.decode("latin-1").partition(" ")
        return _of_secret(secret.strip()) if scheme.lower() == "bearer" else None
    return principal_of_session(scope)


def principal_of_session(scope: dict[str, Any]) -> Principal | None:
    """Return the user of the session cookie. Return None if nobody is signed in. Queries the database.

    A session ends when its row in the database is deleted, or when the user changes the password. It gives an SRE no
    access until the SRE has used the second factor that the portal requires.
    """
    session, user_id = scope.get("session"), scope["user"].pk
    if user_id is None or session is None or not session.exists(session.session_key):
        return None
    user = get_user_model().objects.filter(pk=user_id, is_active=True).first()
    if user is None or not _has_password_of(user, session.get(HASH_SESSION_KEY, "")):
        return None
    if step_needed(user, session) is not None:
        return None
    return principal_of_user(user)


def _has_password_of(user: AbstractBaseUser, session_hash: str) -> bool:
    """Return whether `user` still has the password with which the session began. `session_hash`: the hash that is
    stored in the session.
    """
    accepted = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
    return any(constant_time_compare(session_hash, known) for known in accepted)


def _of_secret(secret: str) -> Principal | None:
    try:
        return principal_of_identity(secret) if looks_like_one(secret) else principal_of_token(secret)[1]
    except (InvalidToken, BadIdentity, Forbidden):  # a token that may only dispatch opens no connection
        return None


def shortened(reason: str) -> str:
    """Return the first 100 bytes of a text. The message that closes a WebSocket has space for 123 bytes of text."""
    return reason.encode()[:100].decode(errors="ignore")
