"""What the home page shows first: what needs the user, the most urgent first, each with one action."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.sigma.home.job_counts import JobsInTrouble
from portal.sigma.jobs.why import WORDS
from portal.sigma.reads.event_sentences import exit_of
from portal.sigma.reads.orders import waiting_for
from portal.sigma.shop.resource_labels import wanted_words
from quota.admission import admission
from quota.models import CapabilityRequest
from quota.notifications.inbox import UNREAD_SHOWN
from quota.selectors import grants_visible
from quota.vocabulary.money import format_credits
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.core.explaining.wording import format_why
from scheduling.jobs.health import first_crashing_tasks, health_of
from scheduling.jobs.notices.condition_rules import longest_pending_s
from scheduling.jobs.notices.present_conditions import pending_since
from scheduling.jobs.why import redacted
from scheduling.models import Job, PendingVerdict, Task
from scheduling.tasks import pending_verdicts
from scheduling.tasks.placement_records import hostnames

# The most lines of each kind. A last line leads to the others.
MOST = 4
# A job is listed after it has had a pending task for so long, in seconds. Its tenant is notified later.
PENDING_AFTER_S = 120.0
# Quota is listed if it ends within this time.
SOON = dt.timedelta(days=14)


@dataclass(frozen=True, slots=True)
class NeedsUser:
    """A line of the list. `tone`: `bad` if the user must act now, `wait` if work waits, or `plain`. `label`: the kind
    of the line. `title`, `link`: the object and the address of its page. `text`: what is wrong with it. `at`: since or
    until when, or None. `action`, `action_link`: what the user can do, and the address of the page for it.
    """

    tone: str
    label: str
    title: str
    link: str
    text: str
    action: str
    action_link: str
    at: dt.datetime | None = None


def needs_user(principal: Principal, jobs: JobsInTrouble, unread: int, *, now: dt.datetime) -> list[NeedsUser]:
    """Return what needs the user, the most urgent first. The number of queries is bounded. `unread`: the number of
    unread notices, as `unread_count` returns it.
    """
    return [
        *_failing(jobs.failing),
        *_pending(jobs.pending, now),
        *_orders(principal),
        *_ending_quota(principal, now),
        *_capabilities(principal),
        *_notices(unread),
    ]


def _failing(jobs: Sequence[Job]) -> Iterator[NeedsUser]:
    shown = jobs[:MOST]
    crashing = first_crashing_tasks(shown)
    for job in shown:
        task, link = crashing.get(job.id), _page_of(job)
        action = (_("Show the job"), link) if task is None else (_("Show its log"), _page_of_task(job, task))
        yield NeedsUser("bad", _("failing"), _title(job), link, _trouble(job, task), *action)
    yield from _more(len(jobs) - len(shown), "bad", _("failing"), "failing")


def _trouble(job: Job, task: Task | None) -> str:
    """Return what is wrong with a failing job. `task`: its first crashing task."""
    troubles = health_of(job).troubles
    if task is not None:
        text = ngettext("%(number)d task crashes.", "%(number)d tasks crash.", troubles.crashing)
        last = _("Task %(index)d last ended: %(exit)s.") % {"index": task.index, "exit": exit_of(task.exit)}
        return f"{text % {'number': troubles.crashing}} {last if task.exit else ''}".strip()
    if troubles.unhealthy:
        text = ngettext("%d task fails its health check.", "%d tasks fail their health check.", troubles.unhealthy)
        return text % troubles.unhealthy
    text = ngettext("%d task has failed.", "%d tasks have failed.", troubles.failed)
    return text % troubles.failed if troubles.failed else _("Tasks of the job crash.")


def _pending(jobs: Sequence[Job], now: dt.datetime) -> Iterator[NeedsUser]:
    """Yield the jobs with a task that has been pending for longer than `PENDING_AFTER_S`, the longest first. Jobs with
    the free priority are left out, because this priority promises nothing (§2.5).
    """
    if not jobs:
        return
    bands = admission.bands()
    since = pending_since([job.id for job in jobs if longest_pending_s(job.priority, bands) is not None])
    late = [job for job in jobs if job.id in since and (now - since[job.id]).total_seconds() >= PENDING_AFTER_S]
    late.sort(key=lambda job: (since[job.id], job.id))
    shown = late[:MOST]
    stored = dict(PendingVerdict.objects.filter(job__in=shown).values_list("job_id", "whys"))
    # A job can have tasks of several kinds. The first explanation is that of most of its tasks.
    whys = {job_id: read[0] for job_id, one in stored.items() if (read := pending_verdicts.read(one))}
    names = hostnames(why.nearest.machine_id for why in whys.values() if why.nearest is not None)
    for job in shown:
        text, why, own = _("The next scheduling pass will examine it."), whys.get(job.id), job.tenant.name
        if why is not None:
            seen = redacted(why, lambda tenant, own=own: tenant == own)  # type: ignore[misc]
            extra = tuple(job.cell.extra_resources)
            text = format_why(seen, job_id=job.id, extra=extra, hostnames=names, words=WORDS).head
        link = _page_of(job)
        cures = reverse("sigma:cures", args=[job.cell.name, job.tenant.name, job.name])
        yield NeedsUser("wait", _("pending"), _title(job), link, text, _("Show solutions"), cures, since[job.id])
    yield from _more(len(late) - len(shown), "wait", _("pending"), "pending")


def _more(number: int, tone: str, label: str, state: str) -> Iterator[NeedsUser]:
    if number > 0:
        text = ngettext("%d more job", "%d more jobs", number) % number
        link = reverse("sigma:jobs", query={"state": state})
        yield NeedsUser(tone, label, text, link, "", _("Show all"), link)


def _orders(principal: Principal) -> Iterator[NeedsUser]:
    waiting = list(waiting_for(principal)[: MOST + 1])
    for order in waiting[:MOST]:
        link = reverse("sigma:order", args=[order.pk])
        text = _("%(amounts)s for %(price)s credits, ordered by %(who)s for tenant %(tenant)s") % {
            "amounts": wanted_words(order.amounts) or _("nothing"),
            "price": format_credits(order.price, places=2),
            "who": order.placed_by,
            "tenant": order.tenant.name,
        }
        title = _("Order %d") % order.pk
        yield NeedsUser("wait", _("to approve"), title, link, text, _("Decide"), link, order.created_at)
    if len(waiting) > MOST:
        link = reverse("sigma:approvals")
        yield NeedsUser("wait", _("to approve"), _("More orders"), link, "", _("Show all"), link)


def _ending_quota(principal: Principal, now: dt.datetime) -> Iterator[NeedsUser]:
    rows = grants_visible(principal).filter(ends_at__gt=now, ends_at__lt=now + SOON, starts_at__lte=now)
    rows = rows.exclude(order__renew=True).order_by("ends_at", "id")
    for grant in rows[:MOST]:
        link = reverse("sigma:order", args=[grant.order_id]) if grant.order_id else reverse("sigma:quota")
        text = _("for tenant %(tenant)s in band %(band)s of cell %(cell)s ends, and is not renewed.") % {
            "tenant": grant.tenant.name,
            "band": grant.band.name,
            "cell": grant.cell,
        }
        buys = may(principal, Action.QUOTA_BUY, tenant=grant.tenant.name, cell=grant.cell)
        action = _("Renew the order") if grant.order_id and buys else _("Show the quota")
        title = _("Quota of %s") % (wanted_words(grant.amounts) or _("nothing"))
        yield NeedsUser("wait", _("ends soon"), title, link, text, action, link, grant.ends_at)


def _capabilities(principal: Principal) -> Iterator[NeedsUser]:
    """Yield one line if requests for capabilities wait for this SRE."""
    number = CapabilityRequest.objects.filter(state="open").count() if principal.sre else 0
    if number:
        text = ngettext("%d request for a capability", "%d requests for capabilities", number) % number
        link = reverse("admin:quota_capabilityrequest_changelist", query={"state__exact": "open"})
        yield NeedsUser("wait", _("to approve"), text, link, "", _("Decide"), link)


def _notices(number: int) -> Iterator[NeedsUser]:
    if not number:
        return
    many = f"{UNREAD_SHOWN}+" if number > UNREAD_SHOWN else str(number)
    title = ngettext("%s unread notice", "%s unread notices", number) % many
    link = reverse("sigma:notices", query={"unread": "1"})
    yield NeedsUser("plain", _("notices"), title, link, "", _("Read them"), link)


def _title(job: Job) -> str:
    return f"{job.cell.name}/{job.tenant.name}/{job.name}"


def _page_of(job: Job) -> str:
    return reverse("sigma:job", args=[job.cell.name, job.tenant.name, job.name])


def _page_of_task(job: Job, task: Task) -> str:
    return reverse("sigma:task", args=[job.cell.name, job.tenant.name, job.name, task.index])
