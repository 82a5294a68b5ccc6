"""The navigation of the console, by task: operate, capacity, market, people, audit.

The sidebar has the pages that SREs use often. The page "All tables" has all pages, in the same groups. Each new page
needs an entry here; a test compares the entries with the registered models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


class ConsoleLink(NamedTuple):
    """A link to a page of the console. `page`: its name in the URLs of the console, without `_changelist` if it lists
    the rows of a model. `icon`: the name of its icon, or "" if the page is only in "All tables".
    """

    title: str | Promise
    page: str
    icon: str = ""


class ConsoleGroup(NamedTuple):
    """A group of links. `title`: a task of an SRE."""

    title: str | Promise
    links: tuple[ConsoleLink, ...]

    @property
    def often(self) -> list[ConsoleLink]:
        """Return the links of the sidebar."""
        return [link for link in self.links if link.icon]


# Pages that do not list the rows of a model.
OWN_PAGES = frozenset({"index", "capacity", "moments", "names", "simulator", "sites", "sql", "statistics", "tables"})
GROUPS: tuple[ConsoleGroup, ...] = (
    ConsoleGroup(
        _("Operate"),
        (
            ConsoleLink(_("Overview"), "index", icon="monitoring"),
            ConsoleLink(_("Cells"), "scheduling_cell", icon="hub"),
            ConsoleLink(_("Machines"), "scheduling_machine", icon="dns"),
            ConsoleLink(_("Machine drains"), "scheduling_drain", icon="water_drop"),
            ConsoleLink(_("Maintenance calendar"), "scheduling_maintenancewindow", icon="event"),
            ConsoleLink(_("Machine pools"), "scheduling_pool", icon="apps"),
            ConsoleLink(_("Safety brakes"), "scheduling_brake", icon="front_hand"),
            ConsoleLink(_("Jobs"), "scheduling_job", icon="work"),
            ConsoleLink(_("Why tasks are pending"), "scheduling_pendingverdict", icon="help"),
            ConsoleLink(_("DNS names"), "names", icon="travel_explore"),
            ConsoleLink(_("Re-packings"), "scheduling_repacking"),
            ConsoleLink(_("Join tokens"), "scheduling_jointoken"),
            ConsoleLink(_("Scheduler leases"), "scheduling_lease"),
            ConsoleLink(_("Tasks"), "scheduling_task"),
            ConsoleLink(_("Job updates"), "scheduling_update"),
            ConsoleLink(_("Tasks being stopped"), "scheduling_departure"),
            ConsoleLink(_("Crashes by task and machine"), "scheduling_crashedpair"),
            ConsoleLink(_("Notice before SIGKILL"), "scheduling_noticecount"),
            ConsoleLink(_("Ended allocs with kept files"), "scheduling_keptalloc"),
            ConsoleLink(_("Specs of jobs"), "scheduling_jobspec"),
            ConsoleLink(_("Packages"), "scheduling_package"),
            ConsoleLink(_("Tags of packages"), "scheduling_packagetag"),
            ConsoleLink(_("Periodic tasks"), "django_celery_beat_periodictask"),
        ),
    ),
    ConsoleGroup(
        _("Capacity"),
        (
            ConsoleLink(_("Capacity of sites"), "sites", icon="public"),
            ConsoleLink(_("Capacity planning"), "capacity", icon="bar_chart"),
            ConsoleLink(_("Capacity shortfalls"), "quota_shortfall", icon="warning"),
            ConsoleLink(_("Statistics"), "statistics", icon="query_stats"),
            ConsoleLink(_("Simulator"), "simulator", icon="schedule"),
            ConsoleLink(_("Sites"), "scheduling_site"),
            ConsoleLink(_("Clusters"), "scheduling_cluster"),
            ConsoleLink(_("Capacity of cells"), "quota_cellcapacity"),
        ),
    ),
    ConsoleGroup(
        _("Market"),
        (
            ConsoleLink(_("Orders"), "quota_order", icon="shopping_cart"),
            ConsoleLink(_("Quota grants"), "quota_quota", icon="sell"),
            ConsoleLink(_("Priority bands"), "quota_priorityband", icon="sort"),
            ConsoleLink(_("Price lists"), "quota_pricelist", icon="payments"),
            ConsoleLink(_("Market rules"), "quota_market", icon="storefront"),
            ConsoleLink(_("Budgets of tenants"), "quota_budget", icon="savings"),
            ConsoleLink(_("Invoices"), "quota_invoice", icon="description"),
            ConsoleLink(_("Approval rules"), "quota_approvalrule"),
            ConsoleLink(_("Quota in use"), "quota_quotause"),
            ConsoleLink(_("Price quotes"), "quota_quote"),
            ConsoleLink(_("Credit accounts"), "quota_account"),
            ConsoleLink(_("Ledger"), "quota_posting"),
        ),
    ),
    ConsoleGroup(
        _("People"),
        (
            ConsoleLink(_("Tenants"), "quota_tenant", icon="groups"),
            ConsoleLink(_("Memberships"), "quota_membership", icon="person"),
            ConsoleLink(_("Capability requests"), "quota_capabilityrequest", icon="back_hand"),
            ConsoleLink(_("Capabilities"), "quota_capability", icon="shield"),
            ConsoleLink(_("Users"), "auth_user", icon="person"),
            ConsoleLink(_("Tokens"), "quota_token", icon="key"),
            ConsoleLink(_("Service accounts"), "quota_serviceaccount"),
            ConsoleLink(_("Invitations"), "quota_invitation"),
            ConsoleLink(_("User groups"), "auth_group"),
            ConsoleLink(_("Notices"), "quota_notice"),
            ConsoleLink(_("Notification channels"), "quota_noticechannel"),
            ConsoleLink(_("Deliveries of notices"), "quota_noticedelivery"),
        ),
    ),
    ConsoleGroup(
        _("Audit"),
        (
            ConsoleLink(_("Journal"), "scheduling_event", icon="history"),
            ConsoleLink(_("Audit records"), "quota_record", icon="list"),
            ConsoleLink(_("Cell at a past moment"), "moments", icon="update"),
            ConsoleLink(_("SQL over the history"), "sql", icon="terminal"),
            ConsoleLink(_("All tables"), "tables", icon="database"),
            ConsoleLink(_("Shell sessions"), "scheduling_shellsession"),
            ConsoleLink(_("Archive files"), "scheduling_archivefile"),
        ),
    ),
)


def links() -> Iterator[ConsoleLink]:
    """Yield the links of all groups."""
    for group in GROUPS:
        yield from group.links
