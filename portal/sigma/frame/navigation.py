"""The navigation: the sections of the portal, and the pages of each section. Each new page needs an entry in this
module.
"""

from __future__ import annotations

from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


class NavigationLink(NamedTuple):
    """A link to a page. `name`: the name of the page in `portal.sigma.urls`. `also`: the names of its subpages, to
    which the navigation does not link.
    """

    name: str
    title: str | Promise
    also: tuple[str, ...] = ()

    def holds(self, name: str) -> bool:
        """Return whether this link leads to the page `name`, or to a page of which `name` is a subpage."""
        return name == self.name or name in self.also


class Section(NamedTuple):
    """A group of pages. The title of the section links to the first page."""

    title: str | Promise
    links: tuple[NavigationLink, ...]


SECTIONS: tuple[Section, ...] = (
    Section(_("Home"), (NavigationLink("home", _("Home")),)),
    Section(
        _("Jobs"),
        (
            NavigationLink("jobs", _("Jobs"), ("job", "job_events", "update", "task", "shell", "specs")),
            NavigationLink("services", _("Services"), ("service", "service-stop", "service-start", "service-restart")),
            NavigationLink("crons", _("Cron jobs"), ("cron",)),
            NavigationLink("templates", _("Templates"), ("template",)),
            NavigationLink("workflows", _("Workflows"), ("workflow",)),
            NavigationLink("submit", _("Submit a job")),
            NavigationLink("names", _("DNS names")),
            NavigationLink("packages", _("Packages")),
        ),
    ),
    Section(
        _("Cells"),
        (
            NavigationLink("cells", _("Cells"), ("cell", "machine", "moment", "event")),
            NavigationLink("map", _("Cell map"), ("cell-map", "cell-map-data")),
            NavigationLink("sql", _("SQL"), ("sql-delete",)),
        ),
    ),
    Section(
        _("Quota"),
        (
            NavigationLink("quota", _("Our quota")),
            NavigationLink("shop", _("Shop"), ("quote",)),
            NavigationLink("orders", _("Orders"), ("order", "order-change")),
            NavigationLink("approvals", _("Approvals")),
        ),
    ),
    Section(
        _("Money"),
        (
            NavigationLink("billing", _("Billing"), ("budget", "hand-down", "invoice", "draft")),
            NavigationLink("costs", _("Costs")),
            NavigationLink("credits", _("Credits"), ("credit", "credit-correct")),
            NavigationLink("planning", _("Quota planning")),
        ),
    ),
    Section(
        _("Teams"),
        (
            NavigationLink(
                "tenants",
                _("Teams"),
                (
                    *("tenant", "invitations", "service-accounts", "service-account", "secrets", "secret"),
                    *("config-files", "config-file", "capabilities", "records"),
                ),
            ),
        ),
    ),
    Section(_("Tokens"), (NavigationLink("tokens", _("Tokens")),)),
)


def section_of(name: str) -> Section | None:
    """Return the section of the navigation that contains the page `name`, or None if no section does."""
    return next((section for section in SECTIONS if any(link.holds(name) for link in section.links)), None)
