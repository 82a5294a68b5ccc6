"""REST of notifications: the inbox of the caller, and the channels of tenants (of the SREs: tenant null)."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.base import QuotaView, page, principal_of, valid
from quota.models import Notice, NoticeChannel, NoticeDelivery, Tenant
from quota.notifications import channels, inbox
from quota.notifications.mail import absolute
from quota.notifications.notice_kinds import KINDS, LEVELS
from quota.notifications.notices import notices_read
from quota.paging import IdPaging, NewestPaging
from quota.rehearsal import dry_run
from quota.vocabulary.errors import Forbidden, Rejected
from quota.vocabulary.permissions import Action, Principal


class NoticeSerializer(serializers.ModelSerializer[Any]):
    tenant = serializers.CharField(source="tenant.name", default=None, allow_null=True)
    url = serializers.SerializerMethodField()
    unread = serializers.BooleanField()

    class Meta:
        model = Notice
        fields = ["id", "tenant", "kind", "level", "subject", "text", "url", "data", "created_at", "unread"]

    def get_url(self, notice: Notice) -> str:
        return absolute(notice.url)


class ReadSerializer(serializers.Serializer[Any]):
    up_to = serializers.IntegerField(min_value=0, max_value=2**63 - 1)
    tenant = serializers.CharField(max_length=63, required=False, allow_null=True)


class ChannelSerializer(serializers.ModelSerializer[Any]):
    """`target`: of a webhook only its host, for those who may not manage the channel: the rest may be a secret."""

    tenant = serializers.CharField(source="tenant.name", default=None, allow_null=True)
    kind = serializers.CharField()
    level = serializers.CharField()
    target = serializers.SerializerMethodField()

    class Meta:
        model = NoticeChannel
        fields = [
            *("id", "tenant", "kind", "target", "kinds", "level", "enabled", "created_by", "created_at"),
            *("failing_since", "paused_at", "error"),
        ]

    def get_target(self, channel: NoticeChannel) -> str:
        return inbox.target_shown(self.context["principal"], channel)


class NewChannelSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63, allow_null=True)
    kind = serializers.CharField(max_length=8, help_text="email or webhook")
    target = serializers.CharField(max_length=500)
    kinds = serializers.ListField(child=serializers.CharField(max_length=64), max_length=50, required=False)
    level = serializers.ChoiceField(list(LEVELS), required=False)


class ChannelChangeSerializer(serializers.Serializer[Any]):
    target = serializers.CharField(max_length=500, required=False)
    kinds = serializers.ListField(child=serializers.CharField(max_length=64), max_length=50, required=False)
    level = serializers.ChoiceField(list(LEVELS), required=False)
    enabled = serializers.BooleanField(required=False)


class RotationSerializer(serializers.Serializer[Any]):
    overlap_hours = serializers.IntegerField(min_value=0, max_value=channels.LONGEST_OVERLAP.days * 24, required=False)


class DeliverySerializer(serializers.ModelSerializer[Any]):
    notice = serializers.IntegerField(source="notice_id")
    kind = serializers.CharField(source="notice.kind")
    subject = serializers.CharField(source="notice.subject")

    class Meta:
        model = NoticeDelivery
        fields = ["id", "notice", "kind", "subject", "state", "attempts", "next_at", "error", "sent_at"]


SecretSerializer = inline_serializer(
    "ChannelSecret", {"secrets": serializers.ListField(child=serializers.CharField(), help_text="The current secrets.")}
)
KindSerializer = inline_serializer(
    "NoticeKind", {"name": serializers.CharField(), "about": serializers.CharField()}, many=True
)
_OF_TENANT = OpenApiParameter(
    "tenant", str, description="Return only notices of this tenant. `sre-` returns the notices of the SREs."
)


class NoticesView(QuotaView):
    pagination_class = NewestPaging

    @extend_schema(
        parameters=[
            _OF_TENANT,
            OpenApiParameter(
                "kind", str, description="Return only this kind, or all kinds that begin with this text, such as order."
            ),
            OpenApiParameter("level", str, enum=list(LEVELS), description="Return only this level and higher levels."),
            OpenApiParameter("unread", OpenApiTypes.BOOL, description="1: only unread ones."),
        ],
        responses=NoticeSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List your notifications, newest first: of the tenants in which you have a role, and of the SREs for SREs."""
        query = request.query_params
        choice = inbox.Choice(
            tenant=query.get("tenant", ""),
            kind=query.get("kind", ""),
            level=query.get("level", ""),
            unread=_flag("unread", query.get("unread", "0")),
        )
        rows = inbox.inbox(principal_of(request), choice)
        return page(self, request, rows, NoticeSerializer)


class NoticesReadView(QuotaView):
    @extend_schema(request=ReadSerializer, responses={200: ReadSerializer})
    def post(self, request: Request) -> Response:
        """Mark notifications as read up to one: of a tenant, of the SREs (null), or all without `tenant`."""
        principal = principal_of(request)
        given = valid(ReadSerializer, request.data)
        whose = [_owner(principal, given["tenant"])] if "tenant" in given else inbox.owners(principal)
        notices_read(principal=principal, up_to=given["up_to"], tenants=whose)
        return Response(given)


class NoticeKindsView(QuotaView):
    @extend_schema(responses=KindSerializer)
    def get(self, request: Request) -> Response:
        """List the kinds of notifications."""
        return Response([{"name": kind.name, "about": kind.about} for kind in KINDS])


class ChannelsView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(parameters=[_OF_TENANT], responses=ChannelSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the channels of your tenants, and those of the SREs for SREs."""
        principal = principal_of(request)
        name = request.query_params.get("tenant", "")
        rows = (
            inbox.channels_of(principal, inbox.owner_named(principal, name))
            if name
            else inbox.channels_visible(principal)
        )
        return page(self, request, rows, ChannelSerializer, context={"principal": principal})

    @extend_schema(request=NewChannelSerializer, responses={201: ChannelSerializer})
    def post(self, request: Request) -> Response:
        """Create a channel that also sends a tenant's notifications to an address or a webhook. A webhook's secret is
        at `secret/`.
        """
        principal = principal_of(request)
        given = valid(NewChannelSerializer, request.data)
        tenant = _owner(principal, given.pop("tenant"))
        return _shown(principal, channels.channel_add(principal=principal, tenant=tenant, **given), status=201)


class ChannelView(QuotaView):
    @extend_schema(responses=ChannelSerializer)
    def get(self, request: Request, channel: int) -> Response:
        principal = principal_of(request)
        return _shown(principal, inbox.channel_numbered(principal, channel))

    @extend_schema(request=ChannelChangeSerializer, responses=ChannelSerializer)
    def patch(self, request: Request, channel: int) -> Response:
        """Change the given fields. Switching a channel off drops its waiting deliveries."""
        principal = principal_of(request)
        row = inbox.channel_numbered(principal, channel)
        given = valid(ChannelChangeSerializer, request.data)
        return _shown(principal, channels.channel_set(principal=principal, channel=row, **given))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, channel: int) -> Response:
        principal = principal_of(request)
        channels.channel_remove(principal=principal, channel=inbox.channel_numbered(principal, channel))
        return Response(status=204)


class ChannelTestView(QuotaView):
    @extend_schema(request=None, responses={201: DeliverySerializer})
    def post(self, request: Request, channel: int) -> Response:
        """Send a test notification through this channel within seconds. `deliveries/` shows the result. Ends a
        pause.
        """
        principal = principal_of(request)
        row = inbox.channel_numbered(principal, channel)
        delivery = channels.channel_test(principal=principal, channel=row)
        return Response(DeliverySerializer(delivery).data, status=201)


class ChannelSecretView(QuotaView):
    @extend_schema(responses=SecretSerializer)
    def get(self, request: Request, channel: int) -> Response:
        """List the secrets that sign its webhooks, newest first. Only for owners."""
        principal = principal_of(request)
        row = inbox.channel_numbered(principal, channel)
        if not inbox.may_manage(principal, row.tenant):
            raise Forbidden(Action.TENANT_ADMIN, f"{principal.name} may not see the secret; owners of the tenant may")
        return Response({"secrets": inbox.secrets_of(row)})

    @extend_schema(request=RotationSerializer, responses=SecretSerializer)
    def post(self, request: Request, channel: int) -> Response:
        """Create a new secret. The previous one signs beside it for a day, or for the given hours."""
        principal = principal_of(request)
        row = inbox.channel_numbered(principal, channel)
        given = valid(RotationSerializer, request.data)
        overlap = dt.timedelta(hours=given["overlap_hours"]) if "overlap_hours" in given else channels.OVERLAP
        row = channels.channel_secret_rotate(principal=principal, channel=row, overlap=overlap)
        return Response({"secrets": [] if dry_run(request) else inbox.secrets_of(row)})


class DeliveriesView(QuotaView):
    pagination_class = NewestPaging

    @extend_schema(responses=DeliverySerializer(many=True))
    def get(self, request: Request, channel: int) -> Response:
        """List deliveries of the channel, newest first: waiting, sent, or failed with the reason."""
        rows = inbox.deliveries_of(inbox.channel_numbered(principal_of(request), channel))
        return page(self, request, rows, DeliverySerializer)


def _owner(principal: Principal, name: str | None) -> Tenant | None:
    return inbox.owner_named(principal, inbox.SRE if name is None else name)


def _shown(principal: Principal, channel: NoticeChannel, *, status: int = 200) -> Response:
    return Response(ChannelSerializer(channel, context={"principal": principal}).data, status=status)


def _flag(name: str, given: Any) -> bool:
    if given not in ("0", "1", "false", "true", ""):
        raise Rejected("invalid", f"{name}: {given[:20]!r}; give 1 or 0", fields={name: "1 or 0"})
    return given in ("1", "true")
