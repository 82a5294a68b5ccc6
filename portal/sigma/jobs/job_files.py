"""Job files on pages: the parsing of what the user writes, and the context of a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.utils.translation import gettext as _

from portal.cli import plainyaml
from portal.sigma.jobs.why import WORDS
from quota.vocabulary.errors import Rejected, invalid
from scheduling.core.explaining.wording import format_fit
from scheduling.jobs.plans import JobPlan
from scheduling.models import Cell
from scheduling.spec import job_spec, parser
from scheduling.spec.nesting import TOO_DEEP, too_deep

MAX_YAML_BYTES = 256 * 1024  # to parse this much YAML takes a second of CPU time, a hundred times as much as JSON


def add_outcome(request: HttpRequest, outcome: str, name: str) -> None:
    """Show the outcome of a submission or an update in a message on the next page."""
    text = {
        "submitted": _("Job %s was submitted."),
        "updated": _("Job %s is being updated."),
        "unchanged": _("Nothing was changed, because job %s already has this spec."),
    }
    messages.success(request, text[outcome] % name)


def plan_context(plan: JobPlan, wanted: job_spec.JobSpecification, cell: Cell) -> dict[str, Any]:
    """Return the template context of a plan, with sentences that say whether the tasks would fit on the machines."""
    extra = tuple(cell.extra_resources)
    fits = [line for fit in plan.guidance for line in format_fit(fit.shapes, tasks=fit.tasks, extra=extra, words=WORDS)]
    return {"plan": plan, "wanted": wanted, "problem": plan.problem, "steps": _steps_of(plan), "fits": fits}


def file_of(text: str) -> dict[str, Any]:
    """Parse a job file in JSON or YAML. Raises `Rejected` if the file is not valid."""
    is_json = text.lstrip().startswith("{")
    most = parser.MAX_BYTES if is_json else MAX_YAML_BYTES
    if (size := len(text.encode())) > most:
        form = "JSON" if is_json else "YAML"
        raise _unreadable(
            _("the file has %(size)d bytes; this page accepts at most %(most)d bytes of %(form)s; shorten the file")
            % {"size": size, "most": most, "form": form}
        )
    try:
        given = json.loads(text) if is_json else plainyaml.load(text)
    except plainyaml.NotPlain as error:
        if error.line:
            text = _("the job file is not valid YAML; correct line %(line)d: %(error)s")
        else:
            text = _("the job file is not valid YAML; correct the file: %(error)s")
        raise _unreadable(text % {"line": error.line, "error": error}) from error
    except RecursionError as error:
        raise _unreadable(TOO_DEEP) from error
    except ValueError as error:
        raise _unreadable(_("the job file is not valid JSON; correct the file: %s") % error) from error
    if too_deep(given):
        raise _unreadable(TOO_DEEP)
    if not isinstance(given, dict):
        raise _unreadable(_("the file does not describe a job; add at least the fields name and task"))
    return given


def json_text(spec: Mapping[str, Any]) -> str:
    """Return a job file as JSON."""
    return json.dumps(spec, indent=2, ensure_ascii=False) + "\n"


def _unreadable(why: str) -> Rejected:
    return invalid("file", why, "invalid-spec")


def _steps_of(plan: JobPlan) -> list[tuple[str, int, str]]:
    """Return one row for each kind of change that a plan makes to tasks: a text such as "will be restarted", the number
    of tasks, and their index ranges.
    """
    words = {
        "added": _("will be added"),
        "removed": _("will be ended"),
        "restarted": _("will be restarted, at most %d at a time") % max(plan.max_down, 1),
        "in_place": _("will be changed without a restart"),
        "kept": _("will not change"),
    }
    return [
        (words[name], share.count, ", ".join(f"{a}–{b}" if a != b else str(a) for a, b in share.ranges[:10]))
        for name in words
        if (share := plan.tasks.get(name)) is not None and share.count
    ]
