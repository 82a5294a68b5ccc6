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
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django_celery_beat import admin as beat_admin
from django_celery_beat import models as beat
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.sites import UnfoldAdminSite
from unfold.templatetags import unfold_list
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from portal.console import capacity, moments, name_servers, navigation, simulator, sites, sql, statistics, tables
from portal.console.home.page import home
from portal.console.journal import JournalAdmin
from portal.console.machine_links import with_machine_links
from portal.gallery.pages import console_gallery
from portal.settings.security_headers import CONSOLE
from quota import admin as quota_admin
from quota.admin.base import LeanMedia
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.second_factor import second_factors_remove
from scheduling import admin as scheduling_admin
from scheduling.models import Event


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
        """Return the first page of the console: what needs an SRE, and how the cells are."""
        request.current_app = self.name
        return home(request, self)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Return the view `view`, with a wrapper that adds the console's Content-Security-Policy to each response."""
        return csp_replace(CONSOLE)(super().admin_view(view, cacheable))

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return the template context that all pages of the console share.

        The context contains none of the colours of Django's admin theme, because the file `tokens.css` sets all
        colours.
        """
        return {**super().each_context(request), "colors": None}

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """Return the apps and tables that the user of the request may see, as a list that is made when a template reads
        it. Most pages do not read it, and making it takes an eighth of the time of a page.
        """
        return SimpleLazyObject(partial(super().get_app_list, request, app_label))

    def get_sidebar_list(self, request: HttpRequest) -> list[dict[str, Any]]:
        """Return the links of the sidebar that the user of the request may see. The links are grouped by task, not by
        Django app.
        """
        groups = []
        for group in navigation.GROUPS:
            links = [
                {
                    "title": str(link.title),
                    "icon": link.icon,
                    "link": self.link(link.page),
                    "permission": self._seen(link.page),
                }
                for link in group.often
            ]
            groups.append(
                {
                    "title": str(group.title),
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
            path("tables/", self.admin_view(partial(tables.page, site=self)), name="tables"),
            path("statistics/", self.admin_view(partial(statistics.page, site=self)), name="statistics"),
            path("sql/", self.admin_view(partial(sql.page, site=self)), name="sql"),
            path("sql/saved/<int:number>/delete/", self.admin_view(sql.delete), name="sql-delete"),
            path("capacity.csv", self.admin_view(capacity.download), name="capacity-csv"),
            path("gallery/", self.admin_view(partial(console_gallery, site=self)), name="gallery"),
            *super().get_urls(),
        ]

    def link(self, page: str) -> str:
        """Return the address of a page of `portal.console.navigation`."""
        return reverse(f"{self.name}:{page}" if page in navigation.OWN_PAGES else f"{self.name}:{page}_changelist")

    def sees(self, request: HttpRequest, page: str) -> bool:
        """Return whether the user of the request may see a page of `portal.console.navigation`."""
        return bool(self._seen(page)(request))

    def _seen(self, page: str) -> Any:
        if page in navigation.OWN_PAGES:
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
    """The pages of the schedules of periodic tasks in the console. Lists of pages do not contain them: they are reached
    from the form of a periodic task.
    """

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Return no permission, so that Django's list of an app leaves these tables of a library out."""
        return {}


site = SreSite(name="admin")
site.login = secure_admin_login(site.login)  # type: ignore[method-assign]
for _model, _page in {**quota_admin.PAGES, **scheduling_admin.PAGES}.items():
    site.register(_model, JournalAdmin if _model is Event else with_machine_links(_page))
site.register(User, PersonAdmin)
site.register(Group, TeamAdmin)
site.register(beat.PeriodicTask, BeatTaskAdmin)
for _model in (beat.IntervalSchedule, beat.CrontabSchedule, beat.SolarSchedule, beat.ClockedSchedule):
    site.register(_model, ScheduleAdmin)
