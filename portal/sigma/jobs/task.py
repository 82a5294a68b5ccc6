"""The page of one task with its machines, usage, events and logs, and the page of its terminal."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal.sigma.frame.page import page
from portal.sigma.jobs.charts.score_bars import score_bars
from portal.sigma.jobs.incarnations import complete, incarnation_table
from portal.sigma.jobs.specs.prices import usage_price
from portal.sigma.jobs.task_timeline import timeline_of
from portal.sigma.jobs.usage_charts import FIRST_SAMPLE_S, HISTORY, newest_sample, usage_charts
from portal.sigma.jobs.why import WORDS, explain
from portal.sigma.reads import event_sentences
from portal.sigma.reads import jobs as reads
from portal.sigma.reads.folded_events import folded
from portal.sigma.reads.journal import events_of, incarnations_of
from portal.sigma.reads.names import names_of_task
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.selectors import alloc_names, port_names, task_at
from scheduling.core.vocabulary.states import TaskState
from scheduling.jobs.why import held_sentences, is_held
from scheduling.maintenance.selectors import windows_of_machines
from scheduling.models import Departure, JobSpec, PendingVerdict, Task
from scheduling.shells.shells import IDLE_S, LONGEST_S, may_open_shells, require_shell
from scheduling.spec import parser
from scheduling.tasks import pending_verdicts
from scheduling.tasks.placement_records import receipts
from scheduling.usage import usage_windows


@page
def task(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str, index: int) -> HttpResponse:
    job = reads.job_named(principal, cell, tenant, name, uid=request.GET.get("uid", ""))
    row = task_at(job, index)
    ports = list(zip(port_names(job, [row]).get(row.spec_version) or [], row.ports, strict=False))
    row.job = job
    archive = request.GET.get("archive") == "yes"
    history = incarnations_of(row, archive=archive)

    def sees(owner: str) -> bool:
        return may(principal, Action.JOB_VIEW, tenant=owner, cell=cell)

    found = receipts([one.event for one in history], sees=sees)
    verdict = PendingVerdict.objects.filter(job=job).first() if row.state == TaskState.PENDING else None
    now = timezone.now()
    simulated = row.machine is not None and row.machine.attributes.get("runtime") == "simulated"
    logs = f"/api/v1/cells/{cell}/jobs/{tenant}/{name}/tasks/{index}/logs/"
    pays = may(principal, Action.BILLING_VIEW, tenant=tenant, cell=cell)
    price, price_away = usage_price(job) if pays else (None, False)
    windows = list(usage_windows.of_task(row, since=now - HISTORY))
    shells = may_open_shells(principal, job)
    context = {
        "usage": usage_charts(windows, newest_sample(row), limit=row.limit, until=now),
        "first_sample_s": FIRST_SAMPLE_S,
        "job": job,
        "task": row,
        "placement": found.placement if row.state == TaskState.RUNNING else None,
        "score_bars": score_bars(found.placement) if row.state == TaskState.RUNNING else [],
        "preempted": found.preempted,
        "whys": explain(job, pending_verdicts.read(verdict.whys)) if verdict else [],
        "verdict": verdict,
        "waiting": " ".join(held_sentences(job, WORDS)) if is_held(job) else "",
        "beyond": held_sentences(job, WORDS),
        "ports": ports,
        "names": names_of_task(job, row, ports),
        "alloc": alloc_names([row]).get(row.alloc_id, ""),  # type: ignore[arg-type]
        "max_run_s": _max_run_s(row),
        "maintenance": windows_of_machines(job.cell_id, [row.machine_id]).get(row.machine_id)
        if row.machine_id
        else None,
        "exit": event_sentences.exit_of(row.exit),
        "incarnations": incarnation_table(job, row, [one.event for one in history], sees=sees, logs=logs),
        "older": not archive and job.cell.journal_floor > 0 and not complete([one.event for one in history]),
        "price": price,
        "price_away": price_away,
        "timeline": timeline_of(history, until=now),
        "folds": folded(events_of(job, index=index, limit=50)),
        "departures": list(Departure.objects.filter(task=row).select_related("machine")),
        "logs": logs,
        "simulated": simulated,
        "may_shell": row.state == TaskState.RUNNING and shells,
        "asks_shell": row.state == TaskState.RUNNING and not shells and not simulated,
        "may_write": may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell),
    }
    return render(request, "sigma/task.html", context)


def _max_run_s(row: Task) -> float | None:
    """Return the time limit of a task's runs in seconds. Return None if it has none, or if the archive has the version
    of the spec that it ran.
    """
    stored = JobSpec.objects.filter(job=row.job, version=row.spec_version).first()
    if stored is None:
        return None
    return parser.load(stored.spec, extra=tuple(row.job.cell.extra_resources)).task(row.index).max_run_s


@page
def shell(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str, index: int) -> HttpResponse:
    """Show the page with a terminal in a task. The WebSocket of the terminal checks the permission again."""
    job = reads.job_named(principal, cell, tenant, name, uid=request.GET.get("uid", ""))
    require_shell(principal, job)
    context = {
        "job": job,
        "task": task_at(job, index),
        "socket": f"/ws/shell/{cell}/{tenant}/{name}/{index}/?uid={job.uid}",
        "idle_minutes": int(IDLE_S // 60),
        "longest_hours": int(LONGEST_S // 3600),
    }
    return render(request, "sigma/shell.html", context)
