"""Where one can go: sections in the upper line, the pages of the section one is in below it. Add a page here."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


class NavigationLink(NamedTuple):
    """`name`: of the page in `portal.sigma.urls`; `also`: of pages below it, which have no link of their own."""

    name: str
    title: str | Promise
    also: tuple[str, ...] = ()

    def holds(self, name: str) -> bool:
        return name == self.name or name in self.also


class Section(NamedTuple):
    """Leads to its first page."""

    title: str | Promise
    links: tuple[NavigationLink, ...]


SECTIONS: tuple[Section, ...] = (
    Section(_("Home"), (NavigationLink("home", _("Home")),)),
    Section(
        _("Jobs"),
        (
            NavigationLink("jobs", _("Jobs"), ("job", "job_events", "update", "task", "shell", "specs")),
            NavigationLink("submit", _("Submit")),
            NavigationLink("names", _("Names"), ("service",)),
            NavigationLink("packages", _("Packages")),
        ),
    ),
    Section(_("Cells"), (NavigationLink("cells", _("Cells"), ("cell",)),)),
    Section(
        _("Quota"),
        (
            NavigationLink("quota", _("What we have")),
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
            NavigationLink("planning", _("Planning")),
        ),
    ),
    Section(
        _("Teams"),
        (
            NavigationLink(
                "tenants",
                _("Teams"),
                ("tenant", "invitations", "service-accounts", "service-account", "capabilities", "records"),
            ),
        ),
    ),
    Section(_("Tokens"), (NavigationLink("tokens", _("Tokens")),)),
)


def section_of(name: str) -> Section | None:
    """The section that a page belongs to."""
    return next((section for section in SECTIONS if any(link.holds(name) for link in section.links)), None)
