"""The SRE console, which is based on django-unfold's admin site. Only staff may use it. Each app lists its pages in the
variable `PAGES`, and this module adds them to the console.

People sign in to the console on the portal's normal sign-in page, with its rate limit and its second factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

from allauth.account.decorators import secure_admin_login
from csp.decorators import csp_replace
from django.apps import apps
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import path, reverse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django_celery_beat import admin as beat_admin
from django_celery_beat import models as beat
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.sites import UnfoldAdminSite
from unfold.templatetags import unfold_list
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from portal.console import capacity, moments, name_servers, simulator, sites, sql, statistics
from portal.console.attention import add_market_messages
from portal.console.journal import JournalAdmin
from portal.gallery.pages import console_gallery
from portal.settings.security_headers import CONSOLE
from quota import admin as quota_admin
from quota.admin.base import LeanMedia
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.second_factor import second_factors_remove
from scheduling import admin as scheduling_admin
from scheduling.admin.drains_and_brakes import notify_held
from scheduling.models import Event

# The groups of links: the title of the group, then title, icon and page of each link.
_SIDEBAR: tuple[tuple[Any, ...], ...] = (
    (
        _("Cells"),
        (_("Capacity of sites"), "public", "sites"),
        (_("Sites"), "location_on", "scheduling_site"),
        (_("Clusters"), "lan", "scheduling_cluster"),
        (_("Cells"), "hub", "scheduling_cell"),
        (_("Machines"), "dns", "scheduling_machine"),
        (_("Cell at a past moment"), "history", "moments"),
        (_("DNS names"), "travel_explore", "names"),
        (_("SQL over the history"), "terminal", "sql"),
        (_("Machine drains"), "water_drop", "scheduling_drain"),
        (_("Maintenance calendar"), "event", "scheduling_maintenancewindow"),
        (_("Machine pools"), "workspaces", "scheduling_pool"),
        (_("Re-packings"), "inventory_2", "scheduling_repacking"),
        (_("Safety brakes"), "front_hand", "scheduling_brake"),
        (_("Join tokens"), "key", "scheduling_jointoken"),
        (_("Scheduler leases"), "schedule", "scheduling_lease"),
    ),
    (
        _("Jobs and tasks"),
        (_("Jobs"), "work", "scheduling_job"),
        (_("Tasks"), "list", "scheduling_task"),
        (_("Job updates"), "update", "scheduling_update"),
        (_("Why tasks are pending"), "help", "scheduling_pendingverdict"),
        (_("Tasks being stopped"), "logout", "scheduling_departure"),
        (_("Crashes by task and machine"), "block", "scheduling_crashedpair"),
        (_("Shell sessions"), "terminal", "scheduling_shellsession"),
        (_("Journal"), "history", "scheduling_event"),
        (_("Archive files"), "inventory_2", "scheduling_archivefile"),
        (_("Statistics"), "query_stats", "statistics"),
        (_("Simulator"), "schedule", "simulator"),
    ),
    (
        _("Market"),
        (_("Orders"), "shopping_cart", "quota_order"),
        (_("Capacity shortfalls"), "warning", "quota_shortfall"),
        (_("Quota grants"), "sell", "quota_quota"),
        (_("Quota in use"), "bar_chart", "quota_quotause"),
        (_("Capacity planning"), "monitoring", "capacity"),
        (_("Capacity of cells"), "database", "quota_cellcapacity"),
        (_("Market rules"), "storefront", "quota_market"),
        (_("Approval rules"), "rule", "quota_approvalrule"),
        (_("Priority bands"), "sort", "quota_priorityband"),
        (_("Price lists"), "payments", "quota_pricelist"),
        (_("Price quotes"), "request_quote", "quota_quote"),
    ),
    (
        _("Money"),
        (_("Budgets of tenants"), "savings", "quota_budget"),
        (_("Credit accounts"), "account_balance", "quota_account"),
        (_("Ledger"), "receipt_long", "quota_posting"),
        (_("Invoices"), "description", "quota_invoice"),
    ),
    (
        _("Tenants"),
        (_("Tenants"), "groups", "quota_tenant"),
        (_("Memberships"), "person", "quota_membership"),
        (_("Invitations"), "mail", "quota_invitation"),
        (_("Service accounts"), "robot_2", "quota_serviceaccount"),
        (_("Capabilities"), "shield", "quota_capability"),
        (_("Capability requests"), "back_hand", "quota_capabilityrequest"),
        (_("Audit records"), "history", "quota_record"),
    ),
    (
        _("Users and tokens"),
        (_("Users"), "person", "auth_user"),
        (_("User groups"), "groups", "auth_group"),
        (_("Tokens"), "key", "quota_token"),
    ),
    (
        _("Notices"),
        (_("Notices"), "notifications", "quota_notice"),
        (_("Notification channels"), "forward_to_inbox", "quota_noticechannel"),
        (_("Deliveries of notices"), "outgoing_mail", "quota_noticedelivery"),
    ),
    (_("Background work of the portal"), (_("Periodic tasks"), "schedule", "django_celery_beat_periodictask")),
)
# Pages that do not list the rows of a model.
_OWN_PAGES = frozenset({"capacity", "moments", "names", "simulator", "sites", "sql", "statistics"})


def kept_headers(headers: Callable[[Any], Iterable[Any]]) -> Callable[[Any], list[Any]]:
    """Return a function that computes the column headers of a list page once with `headers`, and then returns the
    stored result.

    The library unfold would compute the headers again for each row, which takes a fifth of the time of a page.
    """

    @wraps(headers)
    def kept(changes: Any) -> list[Any]:
        if not hasattr(changes, "borg_headers"):
            changes.borg_headers = list(headers(changes))
        found: list[Any] = changes.borg_headers
        return found

    return kept


unfold_list.result_headers = kept_headers(unfold_list.result_headers)


class SreSite(UnfoldAdminSite):
    """Django's admin site, as the console for SREs."""

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Return the first page of the console, with messages about what needs the attention of an SRE."""
        if self.has_permission(request):
            notify_held(request, self.name)
            add_market_messages(request, self.name)
        return super().index(request, extra_context)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Return the view `view`, with a wrapper that adds the console's Content-Security-Policy to each response."""
        return csp_replace(CONSOLE)(super().admin_view(view, cacheable))

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return the template context that all pages of the console share.

        The context contains none of the colours of Django's admin theme, because the file `tokens.css` sets all
        colours.
        """
        return {**super().each_context(request), "colors": None}

    def get_sidebar_list(self, request: HttpRequest) -> list[dict[str, Any]]:
        """Return the links of the sidebar that the user of the request may see. The links are grouped by subject, not
        by Django app.
        """
        groups = []
        for title, *items in _SIDEBAR:
            links = [
                {"title": str(name), "icon": icon, "link": self._link(page), "permission": self._seen(page)}
                for name, icon, page in items
            ]
            groups.append(
                {
                    "title": str(title),
                    "separator": True,
                    "collapsible": False,
                    "items": self._get_navigation_items(request, links),  # type: ignore[attr-defined]
                }
            )
        return groups

    def get_urls(self) -> list[Any]:
        """Return the URLs of the console: those of its own pages, and those of Django's admin site for models."""
        return [
            path("capacity/", self.admin_view(partial(capacity.page, site=self)), name="capacity"),
            path("moments/", self.admin_view(partial(moments.page, site=self)), name="moments"),
            path("names/", self.admin_view(partial(name_servers.page, site=self)), name="names"),
            path("simulator/", self.admin_view(partial(simulator.page, site=self)), name="simulator"),
            path("sites/", self.admin_view(partial(sites.page, site=self)), name="sites"),
            path("statistics/", self.admin_view(partial(statistics.page, site=self)), name="statistics"),
            path("sql/", self.admin_view(partial(sql.page, site=self)), name="sql"),
            path("sql/saved/<int:number>/delete/", self.admin_view(sql.delete), name="sql-delete"),
            path("capacity.csv", self.admin_view(capacity.download), name="capacity-csv"),
            path("gallery/", self.admin_view(partial(console_gallery, site=self)), name="gallery"),
            *super().get_urls(),
        ]

    def _link(self, page: str) -> str:
        return reverse(f"{self.name}:{page}" if page in _OWN_PAGES else f"{self.name}:{page}_changelist")

    def _seen(self, page: str) -> Any:
        if page in _OWN_PAGES:
            return self.has_permission
        return self._registry[apps.get_model(".".join(page.rsplit("_", 1)))].has_view_permission


class PersonAdmin(LeanMedia, UserAdmin, ModelAdmin):  # type: ignore[type-arg]
    """The pages of user accounts in the console. Django's permissions apply: only superusers can create accounts of
    SREs.
    """

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    actions = ["remove_second_factors"]

    @admin.action(description=_("Remove second factors and end sessions"), permissions=["change"])
    def remove_second_factors(self, request: HttpRequest, users: QuerySet[User]) -> None:
        """Remove the second factors of people who have lost them, so that they can set up new ones."""
        principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
        count = second_factors_remove(principal=principal, users=users)
        text = ngettext("%d second factor was removed.", "%d second factors were removed.", count) % count
        self.message_user(request, text, messages.SUCCESS)

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return the accounts of people. If a form of the console searches for a user, return also the service
        accounts.
        """
        rows = super().get_queryset(request)
        searched = request.resolver_match is not None and request.resolver_match.url_name == "autocomplete"
        return rows if searched else rows.filter(service_account=None)


class TeamAdmin(LeanMedia, GroupAdmin, ModelAdmin):
    """The pages of user groups (Django's model `Group`) in the console."""


class _BeatTaskForm(beat_admin.PeriodicTaskForm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["task"].widget = UnfoldAdminTextInputWidget()
        self.fields["regtask"].widget = UnfoldAdminSelectWidget(choices=self.fields["regtask"].choices)


class BeatTaskAdmin(LeanMedia, beat_admin.PeriodicTaskAdmin, ModelAdmin):  # type: ignore[misc]
    """The pages of periodic tasks in the console."""

    form = _BeatTaskForm


class ScheduleAdmin(LeanMedia, ModelAdmin):
    """The pages of the schedules of periodic tasks in the console."""


site = SreSite(name="admin")
site.login = secure_admin_login(site.login)  # type: ignore[method-assign]
for _model, _page in {**quota_admin.PAGES, **scheduling_admin.PAGES}.items():
    site.register(_model, JournalAdmin if _model is Event else _page)
site.register(User, PersonAdmin)
site.register(Group, TeamAdmin)
site.register(beat.PeriodicTask, BeatTaskAdmin)
for _model in (beat.IntervalSchedule, beat.CrontabSchedule, beat.SolarSchedule, beat.ClockedSchedule):
    site.register(_model, ScheduleAdmin)
