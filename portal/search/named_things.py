"""Searches things of tenants by a part of their name: cron jobs, workflows, templates, services, config files
and machine pools.

All kinds together are one query: a union of at most `MOST` rows of each kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import CharField, F, QuerySet, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Length
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.search.query import Query, Result, ResultGroup
from portal.sigma.reads.jobs import cron_jobs_visible, operated_jobs_visible, templates_visible, workflows_visible
from quota.selectors import tenants_visible
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Cell, ConfigFile, Pool
from scheduling.services.selectors import NAME

# The most results of each kind.
MOST = 8
_CRON, _WORKFLOW, _TEMPLATE, _SERVICE = "cron", "workflow", "template", "service"
_CONFIG, _POOL = "config", "pool"


class _Row(NamedTuple):
    kind: str
    name: str
    tenant: str
    cell: str


def named_things(principal: Principal, cells: dict[int, Cell], query: Query) -> list[ResultGroup]:
    """Return the groups of things whose name contains the text. The text may begin with the name of the tenant, or with
    those of the cell and the tenant. `cells`: those that the user may see, by id. Makes one query.
    """
    if not query.job or query.index is not None:
        return []
    parts = [rows for rows in _parts(principal, cells, query) if not rows.query.is_empty()]
    found: dict[str, list[Result]] = defaultdict(list)
    for row in _union(parts):
        found[row.kind].append(_result(principal, row))
    titles = {
        _SERVICE: _("Services"),
        _WORKFLOW: _("Workflows"),
        _CRON: _("Cron jobs"),
        _TEMPLATE: _("Templates"),
        _CONFIG: _("Config files"),
        _POOL: _("Machine pools"),
    }
    return [ResultGroup(title, found[kind]) for kind, title in titles.items()]


def _parts(principal: Principal, cells: dict[int, Cell], query: Query) -> Iterable[QuerySet[Any]]:
    tenant = {"tenant__name": query.tenant} if query.tenant else {}
    cell = {"cell__name": query.cell} if query.cell else {}
    here = {"cell__in": list(cells), **cell}
    of_tenant = {"name": F("name"), "tenant": F("tenant__name"), "cell": F("cell__name")}
    crons = cron_jobs_visible(principal).filter(name__contains=query.job, **tenant, **here)
    yield _picked(crons, _CRON, **of_tenant)
    workflows = workflows_visible(principal).filter(name__contains=query.job, **tenant, **here)
    yield _picked(workflows, _WORKFLOW, **of_tenant)
    templates = templates_visible(principal).filter(name__contains=query.job, **tenant, **here)
    yield _picked(templates, _TEMPLATE, **of_tenant)
    live = operated_jobs_visible(principal).exclude(state=JobState.DEAD.value)
    label = KeyTextTransform("service", "labels")
    jobs = live.alias(label=label).filter(kind="job", labels__has_key="service", label__contains=query.job)
    jobs = jobs.filter(label__regex=NAME.pattern)  # older releases accepted any text as the label
    yield _picked(jobs.filter(**tenant, **here), _SERVICE, **of_tenant | {"name": label})
    if not cell:
        teams = tenants_visible(principal).order_by()
        configs = ConfigFile.objects.filter(deleted_at=None, name__contains=query.job, tenant__in=teams, **tenant)
        yield _picked(configs, _CONFIG, **of_tenant | {"cell": Value("")})
    pools = Pool.objects.filter(name__contains=query.job, **here)
    if not may(principal, Action.MACHINE_ADMIN):
        own = tenants_visible(principal).order_by().values_list("name", flat=True)
        pools = pools.filter(tenants__overlap=ArraySubquery(own))
    if not query.tenant:
        yield _picked(pools, _POOL, **of_tenant | {"tenant": Value("")})


def _picked(rows: QuerySet[Any], kind: str, *, name: Any, tenant: Any, cell: Any) -> QuerySet[Any]:
    """Return the different names among rows, the shortest first, as values of `_Row`."""
    values = {"of": Value(kind), "called": name, "owner": tenant, "place": cell}
    text = {key: Cast(value, CharField()) for key, value in values.items()}
    return rows.order_by(Length(text["called"]), text["called"]).values_list(*text.values()).distinct()[:MOST]


def _union(parts: list[QuerySet[Any]]) -> list[_Row]:
    return [_Row(*row[:4]) for row in (parts[0].union(*parts[1:], all=True) if parts else ())]


def _result(principal: Principal, row: _Row) -> Result:
    title = f"{row.tenant}/{row.name}" if row.tenant else row.name
    names = (row.name, f"{row.cell}/{title}")
    match row.kind:
        case "config":
            return Result(title, _("config file"), reverse("sigma:config-file", args=[row.tenant, row.name]), names)
        case "pool":
            link = reverse("sigma:cell", args=[row.cell])
            if may(principal, Action.MACHINE_ADMIN, cell=row.cell):
                link = reverse("admin:scheduling_pool_changelist") + f"?q={row.name}"
            return Result(title, _("machine pool of cell %s") % row.cell, link, names)
    texts = {
        _CRON: _("cron job in cell %s"),
        _WORKFLOW: _("workflow in cell %s"),
        _TEMPLATE: _("template in cell %s"),
        _SERVICE: _("service in cell %s"),
    }
    link = reverse(f"sigma:{row.kind}", args=[row.cell, row.tenant, row.name])
    return Result(title, texts[row.kind] % row.cell, link, names)
