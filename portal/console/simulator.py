"""The console page of the simulator (Fauxmaster, §3.1). An SRE opens simulations of cells there, moves them forwards or
backwards, copies them into branches, and asks questions.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from unfold.widgets import INPUT_CLASSES, SELECT_CLASSES

from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import cell_named, cells_visible
from scheduling.hosting import sessions
from scheduling.hosting.sessions import DRAWN, HostedSession

Answer = dict[str, Any]
QUESTIONS = ("fit", "evict", "drain", "give-back", "what-if")
UNITS = ("event", "pass", "second")
_MAIN = "main"
_MOST_REVISION = 2**53
_FIGURES_WAIT_S = 2.0  # what the page asks for first may have taken most of the request's time already


def page(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the page of the simulator. A POST request first executes one action, which its form field `do` names, and
    the page then shows the result.
    """
    principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
    chosen = request.POST.get("session") or request.GET.get("session", "")
    answer, problem = None, ""
    try:
        if request.method == "POST":
            answer = _do(principal, request.POST)
    except Rejected as error:
        problem = error.detail
    opened = sessions.sessions_of(principal)
    session = next((one for one in opened if one.name == chosen), opened[0] if opened else None)
    figures, branches = _figures(principal, session, request.POST.get("branch") or _MAIN)
    context = {
        **site.each_context(request),
        "title": _("Simulator"),
        "problem": problem,
        "sessions": opened,
        "session": session,
        "answer": answer and {"text": answer["text"], "table": _table(answer)},
        "figures": figures,
        "branches": branches,
        "branch": request.POST.get("branch") or _MAIN,
        "cells": cells_visible(principal).order_by("name"),
        "drawn": DRAWN,
        "questions": QUESTIONS,
        "units": UNITS,
        "given": request.POST,
        "most": sessions.MOST_PER_PERSON,
        "input_classes": " ".join(INPUT_CLASSES),
        "select_classes": " ".join(SELECT_CLASSES),
    }
    return TemplateResponse(request, "console/simulator.html", context, status=200 if not problem else 422)


def _figures(
    principal: Principal, session: HostedSession | None, branch: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the figures of a branch (a copy of the simulated cell) as a table, and the names of all branches. The
    table is None if the simulation is not ready or does not answer.
    """
    if session is None or session.state != "ready":
        return None, []
    request = {"do": "show", "branch": branch}
    try:
        shown = sessions.session_ask(principal=principal, name=session.name, request=request, wait_s=_FIGURES_WAIT_S)
    except Rejected:
        return None, [_MAIN]
    return _table(shown), str(dict(shown["rows"])["branches"]).split(", ")


def _do(principal: Principal, given: QueryDict) -> Answer | None:
    """Execute the action that the form field `do` names. Return the answer of the simulation, or None if the action
    opens or closes a session. Raises `Rejected` if the form is not valid.
    """
    do, name = given.get("do", ""), given.get("session", "")
    if do == "open":
        _open(principal, given)
        return None
    if do == "close":
        sessions.session_close(principal=principal, name=name)
        return None
    if do not in _REQUESTS:
        raise invalid(
            "do", f"{do[:40]!r} is not an action of the simulator; use one of open, close, {', '.join(_REQUESTS)}"
        )
    request = {"do": do, "branch": given.get("branch") or _MAIN, **_REQUESTS[do](given)}
    return sessions.session_ask(principal=principal, name=name, request=request)


def _open(principal: Principal, given: QueryDict) -> None:
    source, moment = given.get("source", ""), given.get("moment", "").strip()
    revision: int | None = None
    time: datetime | None = None
    if moment.isdecimal() and int(moment[:20]) <= _MOST_REVISION:
        revision = int(moment[:20])
    elif moment:
        time = _time(moment)
    sessions.session_open(
        principal=principal,
        name=given.get("session", ""),
        cell=None if source == f"{DRAWN}:" else cell_named(principal, source),
        revision=revision,
        time=time,
        hours=_number(given, "replay", "0"),
    )


def _time(moment: str) -> datetime:
    """Parse a time from the form. A time without a zone is in the time zone of the page. Raises `Rejected` if the text
    is not a time.
    """
    try:
        time = parse_datetime(moment)
    except ValueError:
        time = None
    if time is None:
        raise invalid(
            "moment", f"{moment[:40]!r} is neither a revision nor a time; give, for example, 4711 or 2027-01-04 12:00"
        )
    return time if timezone.is_aware(time) else timezone.make_aware(time)


def _number(given: Mapping[str, str], name: str, usual: str) -> float:
    text = given.get(name) or usual
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise invalid(name, f"{text[:40]!r} is not a finite number; give a number such as {usual}")


def _whole(given: Mapping[str, str], name: str, usual: str) -> int:
    return int(_number(given, name, usual))


def _changes(given: Mapping[str, str]) -> dict[str, str]:
    """Return the changed settings in the form field `set`, by name. The field contains `NAME=VALUE` pairs, separated by
    spaces or lines. Raises `Rejected` if a part is not such a pair.
    """
    pairs = [part.partition("=") for part in given.get("set", "").split()]
    if wrong := [name for name, sign, _value in pairs if not sign]:
        raise invalid(
            "set", f"{wrong[0][:40]!r} is not a changed setting; give NAME=VALUE, such as reclamation=aggressive"
        )
    return {name: value for name, _sign, value in pairs}


def _question(given: Mapping[str, str]) -> dict[str, Any]:
    return {
        "question": given.get("question", ""),
        "cpu": given.get("cpu") or "1",
        "ram": given.get("ram") or "1Gi",
        "tasks": _whole(given, "tasks", "1"),
        "priority": _whole(given, "priority", "200"),
        "racks": given.get("racks", "").split(),
        "machines": given.get("machines", "").split(),
        "hours": _number(given, "hours", "24"),
        "set": _changes(given),
    }


_REQUESTS: dict[str, Callable[[QueryDict], dict[str, Any]]] = {
    "run": lambda given: {"hours": _number(given, "hours", "1")},
    "step": lambda given: {
        "number": _whole(given, "number", "1"),
        "by": given.get("by", "event"),
        "back": bool(given.get("back")),
    },
    "until": lambda given: {"condition": given.get("condition", ""), "hours": _number(given, "hours", "24")},
    "branch": lambda given: {"name": given.get("name", ""), "set": _changes(given)},
    "diff": lambda given: {"first": given.get("first", _MAIN), "second": given.get("second", "")},
    "ask": _question,
}
"""The requests to a session, and how their fields follow from the form."""


def _table(answer: Answer) -> dict[str, Any] | None:
    """Return the table in the answer of a simulation, in the form that the console's templates show. Return None if the
    answer has no table.
    """
    if not answer.get("columns"):
        return None
    headers = [str(name).capitalize() for name in answer["columns"]]
    return {"headers": headers, "rows": [[_text(value) for value in row] for row in answer["rows"]]}


def _text(value: object) -> str:
    return f"{value:,.10g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
