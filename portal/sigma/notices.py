"""The inbox of notices, and the notification channels of the user's tenants and of the SREs."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal.parts.paging import by_cursor
from portal.sigma.frame.page import number_among, page, page_of, problem_kept, rendered, whole_number
from quota.models import NoticeChannel
from quota.notifications import channels, inbox
from quota.notifications.notice_kinds import KINDS, LEVELS
from quota.notifications.notices import notices_read
from quota.vocabulary.errors import Forbidden, invalid
from quota.vocabulary.permissions import Action, Principal

PAGE_SIZE = 50
OVERLAP_HOURS = [0, 1, 24, 168]
# The groups of notices that filters offer: the first part of each kind.
GROUPS = sorted({kind.name.partition(".")[0] for kind in KINDS})


@page
def notice_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the notices of the user, newest first. `?before=`: show only notices older than the notice with this id."""
    asked = request.GET
    choice = inbox.Choice(
        tenant=asked.get("tenant", ""),
        kind=asked.get("kind", ""),
        level=asked.get("level", ""),
        unread=asked.get("unread") == "1",
    )
    rows = inbox.inbox(principal, choice)
    before = whole_number(asked.get("before", ""))
    if before is not None:
        rows = rows.filter(id__lt=before)
    shown = list(rows[: PAGE_SIZE + 1])
    return render(
        request,
        "sigma/notices.html",
        {
            "notices": shown[:PAGE_SIZE],
            "paging": by_cursor(older=str(shown[PAGE_SIZE - 1].id) if len(shown) > PAGE_SIZE else ""),
            "chosen": choice,
            "filtered": choice != inbox.Choice() or before is not None,
            # "Mark all as read" covers every notice up to this one. It is offered only if no filter hides some of them.
            "up_to": shown[0].id if shown and before is None and not (choice.kind or choice.level) else None,
            "owners": [_name(owner) for owner in inbox.owners(principal)],
            "sre": inbox.SRE,
            "groups": GROUPS,
            "levels": LEVELS,
        },
    )


@page
@require_POST
def read(request: HttpRequest, principal: Principal) -> HttpResponse:
    up_to = whole_number(request.POST.get("up_to", ""))
    if up_to is None:
        raise invalid("up_to", _("the value is not the number of a notice; reload the inbox and try again"))
    name = request.POST.get("tenant", "")
    owners = [inbox.owner_named(principal, name)] if name else inbox.owners(principal)
    notices_read(principal=principal, up_to=up_to, tenants=owners)
    return redirect("sigma:notices")


@page
def channel_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List the notification channels that the user may see. If the user may add channels, show a form for a new one."""
    managed = [owner for owner in inbox.owners(principal) if inbox.may_manage(principal, owner)]
    context: dict[str, Any] = {
        "managed": [_name(owner) for owner in managed],
        "sre": inbox.SRE,
        "levels": LEVELS,
        "groups": GROUPS,
        "kinds": KINDS,
        "given": {"level": "info", "kind": "email"},
    }
    if request.method == "POST":
        post = request.POST
        context["given"] = {
            **{name: post.get(name, "") for name in ("tenant", "kind", "target", "level")},
            "kinds": post.getlist("kinds"),
        }
        with problem_kept(context):
            owner = inbox.owner_named(principal, post.get("tenant", ""))
            channel = channels.channel_add(principal=principal, **{**context["given"], "tenant": owner})
            messages.success(request, _("The channel was added. Send a test to check that notices arrive."))
            return redirect("sigma:channel", channel.pk)
    rows = inbox.channels_visible(principal)
    context["page_obj"] = page_of(request, rows, PAGE_SIZE)
    context["channels"] = [
        (channel, inbox.target_shown(principal, channel)) for channel in context["page_obj"].object_list
    ]
    return rendered(request, "sigma/channels.html", context)


@never_cache
@page
def channel(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    """Show a channel and its deliveries. Users who may manage the channel also see its settings and its secret."""
    row = inbox.channel_numbered(principal, number)
    context: dict[str, Any] = {"levels": LEVELS, "groups": GROUPS, "hours": OVERLAP_HOURS}
    if request.method == "POST":
        post = request.POST
        with problem_kept(context):
            row = channels.channel_set(
                principal=principal,
                channel=row,
                target=post.get("target", ""),
                kinds=[*post.getlist("kinds"), *_single_kinds(row)],
                level=post.get("level", ""),
                enabled="enabled" in post,
            )
            messages.success(request, _("The settings of the channel were saved."))
            return redirect("sigma:channel", row.pk)
    managed = inbox.may_manage(principal, row.tenant)
    context |= {
        "channel": row,
        "target": inbox.target_shown(principal, row),
        "managed": managed,
        "secrets": inbox.secrets_of(row) if managed else [],
        "finer": _single_kinds(row),
        "page_obj": page_of(request, inbox.deliveries_of(row), PAGE_SIZE),
    }
    return rendered(request, "sigma/channel.html", context)


@page
@require_POST
def test(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    row = inbox.channel_numbered(principal, number)
    channels.channel_test(principal=principal, channel=row)
    messages.success(request, _("A test notice is being sent. Reload this page in a few seconds to see the result."))
    return redirect("sigma:channel", row.pk)


@page
@require_POST
def rotate(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    row = inbox.channel_numbered(principal, number)
    hours = number_among({"hours": "24", **request.POST.dict()}, "hours", OVERLAP_HOURS)
    channels.channel_secret_rotate(principal=principal, channel=row, overlap=dt.timedelta(hours=hours))
    messages.success(request, _("Webhooks are now signed with a new secret. Configure the receiver with this secret."))
    return redirect("sigma:channel", row.pk)


@page
@require_POST
def remove(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    row = inbox.channel_numbered(principal, number)
    if not inbox.may_manage(principal, row.tenant):
        raise Forbidden(Action.TENANT_ADMIN, _("Only owners of the tenant may remove its channels. Ask an owner."))
    channels.channel_remove(principal=principal, channel=row)
    messages.success(request, _("The channel was removed. The inbox keeps all notices."))
    return redirect("sigma:channels")


def _name(owner: Any) -> str:
    return owner.name if owner is not None else inbox.SRE


def _single_kinds(row: NoticeChannel) -> list[str]:
    """Return the kinds of notices that a channel selects one by one instead of in a group. The form shows only groups,
    so saving the form must keep these kinds.
    """
    return [kind for kind in row.kinds if kind not in GROUPS]
