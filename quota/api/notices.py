"""REST API for notifications: the caller's inbox, and channels. The tenant of a channel of the SREs is null."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.base import ListView, QuotaView
from quota.dry_run import dry_run
from quota.models import Notice, NoticeChannel, NoticeDelivery, Tenant
from quota.notifications import channels, inbox
from quota.notifications.mail import absolute
from quota.notifications.notice_kinds import KINDS, LEVELS
from quota.notifications.notices import notices_read
from quota.paging import NewestPaging
from quota.vocabulary.errors import Forbidden
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
    up_to = serializers.IntegerField(min_value=0, max_value=2**63 - 1, help_text="The newest id to mark as read.")
    tenant = serializers.CharField(max_length=63, required=False, allow_null=True)


class ChannelSerializer(serializers.ModelSerializer[Any]):
    """A channel sends notifications by mail or by webhook.

    If the caller may not manage a webhook, `target` shows only the host, because the full URL may contain a secret.
    """

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
        return inbox.target_shown(self.context["view"].principal, channel)


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
    "ChannelSecret", {"secrets": serializers.ListField(child=serializers.CharField(), help_text="Newest first.")}
)
KindSerializer = inline_serializer(
    "NoticeKind", {"name": serializers.CharField(), "about": serializers.CharField()}, many=True
)


class ChannelQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(
        required=False, help_text="Return only items of this tenant. `sre-` returns the items of the SREs."
    )


class NoticeQuerySerializer(ChannelQuerySerializer):
    kind = serializers.CharField(
        required=False, help_text="Return only this kind, or all kinds that begin with this text, such as order."
    )
    level = serializers.ChoiceField(list(LEVELS), required=False, help_text="Return only this level and higher levels.")
    unread = serializers.BooleanField(default=False, help_text="True returns only unread notifications.")


@extend_schema(parameters=[NoticeQuerySerializer])
class NoticesView(ListView):
    """List your notifications, newest first. The list has the notifications of all tenants in which you have a role.

    SREs also get the notifications for SREs.
    """

    serializer_class = NoticeSerializer
    pagination_class = NewestPaging

    def get_queryset(self) -> QuerySet[Notice]:
        return inbox.inbox(self.principal, inbox.Choice(**self.query(NoticeQuerySerializer)))


class NoticesReadView(QuotaView):
    @extend_schema(request=ReadSerializer, responses={200: ReadSerializer})
    def post(self, request: Request) -> Response:
        """Mark notifications as read. `tenant`: the name of a tenant, or null for notifications to the SREs. If
        `tenant` is omitted, all notifications are marked.
        """
        given = self.body(ReadSerializer)
        whose = [_owner(self.principal, given["tenant"])] if "tenant" in given else inbox.owners(self.principal)
        notices_read(principal=self.principal, up_to=given["up_to"], tenants=whose)
        return Response(given)


class NoticeKindsView(QuotaView):
    @extend_schema(responses=KindSerializer)
    def get(self, request: Request) -> Response:
        """List the kinds of notifications."""
        return Response([{"name": kind.name, "about": kind.about} for kind in KINDS])


@extend_schema_view(get=extend_schema(parameters=[ChannelQuerySerializer]))
class ChannelsView(ListView):
    """List the channels (mail addresses and webhooks) of your tenants. SREs also see the channels of the SREs."""

    serializer_class = ChannelSerializer

    def get_queryset(self) -> QuerySet[NoticeChannel]:
        name = self.query(ChannelQuerySerializer).get("tenant")
        if name is None:
            return inbox.channels_visible(self.principal)
        return inbox.channels_of(self.principal, inbox.owner_named(self.principal, name))

    @extend_schema(request=NewChannelSerializer, responses={201: ChannelSerializer})
    def post(self, request: Request) -> Response:
        """Create a channel that sends a tenant's notifications to an address or a webhook. The path `secret/` of the
        channel returns the secret of a webhook.
        """
        given = self.body(NewChannelSerializer)
        tenant = _owner(self.principal, given.pop("tenant"))
        made = channels.channel_add(principal=self.principal, tenant=tenant, **given)
        return Response(self.get_serializer(made).data, status=201)


class ChannelView(QuotaView):
    @extend_schema(responses=ChannelSerializer)
    def get(self, request: Request, channel: int) -> Response:
        """Return a channel."""
        return self._answer(inbox.channel_numbered(self.principal, channel))

    @extend_schema(request=ChannelChangeSerializer, responses=ChannelSerializer)
    def patch(self, request: Request, channel: int) -> Response:
        """Change the given fields of a channel. If you disable a channel, its waiting deliveries are not sent
        any more.
        """
        row = inbox.channel_numbered(self.principal, channel)
        given = self.body(ChannelChangeSerializer)
        return self._answer(channels.channel_set(principal=self.principal, channel=row, **given))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, channel: int) -> Response:
        """Delete a channel."""
        channels.channel_remove(principal=self.principal, channel=inbox.channel_numbered(self.principal, channel))
        return Response(status=204)

    def _answer(self, channel: NoticeChannel) -> Response:
        return Response(ChannelSerializer(channel, context={"view": self}).data)


class ChannelTestView(QuotaView):
    @extend_schema(request=None, responses={201: DeliverySerializer})
    def post(self, request: Request, channel: int) -> Response:
        """Send a test notification through this channel within seconds, and end a pause of the channel. The path
        `deliveries/` of the channel shows the result.
        """
        row = inbox.channel_numbered(self.principal, channel)
        delivery = channels.channel_test(principal=self.principal, channel=row)
        return Response(DeliverySerializer(delivery).data, status=201)


class ChannelSecretView(QuotaView):
    @extend_schema(responses=SecretSerializer)
    def get(self, request: Request, channel: int) -> Response:
        """List the secrets that sign the webhooks of a channel, newest first. Only for owners."""
        row = inbox.channel_numbered(self.principal, channel)
        if not inbox.may_manage(self.principal, row.tenant):
            detail = f"{self.principal.name} may not see the secret of this channel; ask an owner of the tenant"
            raise Forbidden(Action.TENANT_ADMIN, detail)
        return Response({"secrets": inbox.secrets_of(row)})

    @extend_schema(request=RotationSerializer, responses=SecretSerializer)
    def post(self, request: Request, channel: int) -> Response:
        """Create a new secret. The previous secret also stays valid for a day, or for the given hours."""
        row = inbox.channel_numbered(self.principal, channel)
        given = self.body(RotationSerializer)
        overlap = dt.timedelta(hours=given["overlap_hours"]) if "overlap_hours" in given else channels.OVERLAP
        row = channels.channel_secret_rotate(principal=self.principal, channel=row, overlap=overlap)
        return Response({"secrets": [] if dry_run(request) else inbox.secrets_of(row)})


class DeliveriesView(ListView):
    """List deliveries of a channel, newest first. `state` is waiting, sent or failed; `error` has the reason."""

    serializer_class = DeliverySerializer
    pagination_class = NewestPaging

    def get_queryset(self) -> QuerySet[NoticeDelivery]:
        return inbox.deliveries_of(inbox.channel_numbered(self.principal, self.kwargs["channel"]))


def _owner(principal: Principal, name: str | None) -> Tenant | None:
    return inbox.owner_named(principal, inbox.SRE if name is None else name)
