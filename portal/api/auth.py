"""Authentication of API requests by a bearer token or by the session of a signed-in user. The result is a `Principal`
(the caller and its rights).
"""

from __future__ import annotations

from django.contrib.auth.models import AbstractBaseUser
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import authentication, exceptions
from rest_framework.request import Request

from portal.http.rate_limits import forget_tenant, parts_of, remember_tenant
from quota.tenancy.authentication import InvalidToken, principal_of_token, principal_of_user
from quota.vocabulary.permissions import Principal
from scheduling.identity.principals import principal_of_identity
from scheduling.identity.task_tokens import BadIdentity, looks_like_one


class TaskCaller:
    """The user object of a request that a task sends to the API. There is no such user in the database. `request.auth`
    contains the task and its permissions.
    """

    pk = None
    is_authenticated = is_active = True
    is_anonymous = is_staff = is_superuser = False

    def get_username(self) -> str:
        return ""


class TokenAuthentication(authentication.BaseAuthentication):
    """Authentication by the header `Authorization: Bearer`. The header contains a token `borg_…` or the identity of a
    task.

    The attribute `request.auth` of the request is then the `Principal`.
    """

    def authenticate(self, request: Request) -> tuple[AbstractBaseUser | TaskCaller, Principal] | None:
        header = request.headers.get("Authorization", "")
        if not header:
            return None
        scheme, secret = parts_of(header)
        if scheme.lower() != "bearer" or not secret:
            raise exceptions.AuthenticationFailed(
                "The header Authorization is not valid; send 'Authorization: Bearer TOKEN'"
            )
        request_id = getattr(request._request, "borg_request_id", "")
        try:
            user: AbstractBaseUser | TaskCaller
            if looks_like_one(secret):
                user, principal = TaskCaller(), principal_of_identity(secret, request_id=request_id)
            else:
                # `for_dispatch_tokens`: an attribute of the views that tokens with the scope `dispatch` may use.
                dispatching = getattr(request.parser_context.get("view"), "for_dispatch_tokens", False)
                user, principal = principal_of_token(secret, request_id=request_id, dispatching=dispatching)
        except (InvalidToken, BadIdentity) as error:
            forget_tenant(secret)
            raise exceptions.AuthenticationFailed(str(error)) from error
        remember_tenant(secret, principal)
        return user, principal

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="borg"'


class SessionAuthentication(authentication.SessionAuthentication):
    """Authentication of API requests from the portal's own pages, which send the session cookie and a CSRF token."""

    def authenticate(self, request: Request) -> tuple[AbstractBaseUser, Principal] | None:
        answer = super().authenticate(request)
        if answer is None:
            return None
        user = answer[0]
        return user, principal_of_user(user, request_id=getattr(request._request, "borg_request_id", ""))


class _TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token from the portal's Tokens page, or the identity of a task.",
        }


class _SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = SessionAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}
