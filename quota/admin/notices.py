"""The console's pages about notifications, the channels that send them (mail or webhook), and their deliveries. SREs
create channels in the portal, not on these pages.
"""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.paginator import InfinitePaginator

from quota.admin.base import FactsAdmin, principal_of
from quota.models import Notice, NoticeChannel, NoticeDelivery
from quota.notifications.channels import channel_set, channel_test
from quota.vocabulary.errors import Rejected


class NoticeAdmin(FactsAdmin):
    """The page of all notices.

    Notices without a tenant are for SREs. The list does not show how many notices exist, because counting them is slow.
    """

    list_display = ["created_at", "tenant", "level", "kind", "subject"]
    list_filter = ["level"]
    list_select_related = ["tenant"]
    search_fields = ["=kind", "=tenant__name"]
    paginator = InfinitePaginator
    fields = ["tenant", "kind", "level", "subject", "text", "url", "data", "created_at", "spread_at"]


class ChannelAdmin(FactsAdmin):
    """The page of channels, which send notices. It hides their secrets; only owners of tenants may see them."""

    list_display = [
        "target",
        "kind",
        "tenant",
        "enabled",
        "kinds_shown",
        "level",
        "failing_since",
        "paused_at",
        "error",
    ]
    list_filter = ["kind", "enabled"]
    list_select_related = ["tenant"]
    search_fields = ["target", "=tenant__name"]
    fields = [
        "tenant",
        "kind",
        "target",
        "kinds_shown",
        "level",
        "enabled",
        "created_by",
        "created_at",
        "failing_since",
        "paused_at",
        "error",
    ]
    actions = ["try_out", "switch_off"]

    @display(description=_("kinds of notices"))
    def kinds_shown(self, channel: NoticeChannel) -> str:
        return ", ".join(channel.kinds) or str(_("all"))

    @admin.action(description=_("Send a test notice, and resume paused channels"))
    def try_out(self, request: HttpRequest, rows: QuerySet[NoticeChannel]) -> None:
        tried = 0
        for channel in rows.select_related("tenant"):
            try:
                channel_test(principal=principal_of(request), channel=channel)
            except Rejected as problem:
                messages.error(request, f"{channel}: {problem.detail}")
            else:
                tried += 1
        messages.success(
            request, _("%d test notices are being sent. The page of deliveries shows the results.") % tried
        )

    @admin.action(description=_("Disable these channels"))
    def switch_off(self, request: HttpRequest, rows: QuerySet[NoticeChannel]) -> None:
        channels = list(rows.select_related("tenant"))
        for channel in channels:
            channel_set(principal=principal_of(request), channel=channel, enabled=False)
        messages.success(request, _("%d channels were disabled. Notices still arrive in the inboxes.") % len(channels))


class DeliveryAdmin(FactsAdmin):
    list_display = ["id", "notice", "channel", "state", "attempts", "next_at", "sent_at", "error"]
    list_filter = ["state"]
    list_select_related = ["notice", "channel"]
    paginator = InfinitePaginator
    fields = ["notice", "channel", "state", "attempts", "begun_at", "next_at", "sent_at", "error"]


PAGES = {Notice: NoticeAdmin, NoticeChannel: ChannelAdmin, NoticeDelivery: DeliveryAdmin}
