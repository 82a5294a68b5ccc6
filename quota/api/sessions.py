"""REST API for the sessions of people: the browsers in which they are signed in."""

from __future__ import annotations

from typing import Any, cast

from allauth.usersessions.models import UserSession
from django.contrib.auth.models import AbstractBaseUser
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.base import QuotaView
from quota.tenancy.authentication import user_named
from quota.tenancy.sessions import session_end, sessions_end, sessions_of
from quota.vocabulary.browsers import browser_of
from quota.vocabulary.permissions import Action, require

_USER = OpenApiParameter("user", str, description="Name of the person; for SREs. Default: yourself.")


class SessionSerializer(serializers.ModelSerializer[Any]):
    user = serializers.CharField(source="user.username", read_only=True)
    address = serializers.CharField(source="ip", read_only=True, help_text="The address of the last request.")
    browser = serializers.SerializerMethodField()
    current = serializers.SerializerMethodField(help_text="Whether this request uses the session.")

    class Meta:
        model = UserSession
        fields = ["id", "user", "address", "browser", "created_at", "last_seen_at", "current"]
        read_only_fields = fields

    def get_browser(self, row: UserSession) -> str:
        return browser_of(row.user_agent)

    def get_current(self, row: UserSession) -> bool:
        return bool(row.session_key == self.context.get("current"))


class PersonSerializer(serializers.Serializer[Any]):
    user = serializers.CharField(max_length=150, required=False)


_List = inline_serializer("Sessions", {"results": SessionSerializer(many=True)})
_Ended = inline_serializer("EndedSessions", {"ended": serializers.IntegerField()})


class SessionsView(QuotaView):
    @extend_schema(parameters=[_USER], responses=_List)
    def get(self, request: Request) -> Response:
        """List your sessions. SREs may list those of any person."""
        rows = sessions_of(self.principal, self._person(request))
        return Response({"results": SessionSerializer(rows, many=True, context={"current": _key(request)}).data})

    @extend_schema(operation_id="sessions_end", parameters=[_USER], responses=_Ended)
    def delete(self, request: Request) -> Response:
        """End all your sessions except the one of this request. SREs may end those of any person. Tokens stay valid."""
        count = sessions_end(principal=self.principal, user=self._person(request), keep=_key(request))
        return Response({"ended": count})

    def _person(self, request: Request) -> AbstractBaseUser:
        name = self.query(PersonSerializer).get("user", "")
        if not name or name == self.principal.name:
            return cast(AbstractBaseUser, request.user)
        require(self.principal, Action.PLATFORM_ADMIN)
        return user_named(name)


class SessionView(QuotaView):
    @extend_schema(responses=SessionSerializer)
    def delete(self, request: Request, session: int) -> Response:
        """End a session. Its open live pages and shells close within seconds."""
        return Response(SessionSerializer(session_end(principal=self.principal, number=session)).data)


def _key(request: Request) -> str | None:
    """Return the key of the session that authenticates the request, or None if a token does."""
    key: str | None = None if "Authorization" in request.headers else request._request.session.session_key
    return key
