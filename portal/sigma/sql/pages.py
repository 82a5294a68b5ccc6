"""The page for SQL queries over the history of a cell, with ready, saved and shared queries, in the portal and in the
console.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.sigma.frame.page import (
    cell_names,
    given_in,
    number_among,
    page,
    problem_kept,
    rendered,
    tenants_of,
    whole_number,
)
from portal.sigma.sql.charts import chart_of, format_number, is_number
from quota.csv_files import file_answer
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal
from scheduling.access import selectors
from scheduling.api.sql import CONTENT_TYPES
from scheduling.history.infrastore import asking, ready_queries, saved_queries
from scheduling.history.infrastore.columns import TABLES
from scheduling.history.infrastore.process.protocol import Form
from scheduling.history.infrastore.process.query_process import Answer

# The most rows on the page. The files contain up to a million rows.
SHOWN = 500
DAYS = [1, 7, 30, 90, 400]
EXAMPLE = """\
SELECT type, count(*) AS events
FROM instance_events
WHERE time >= :since
GROUP BY type
ORDER BY events DESC"""


@dataclass(frozen=True, slots=True)
class Place:
    """The place where the page for SQL queries is shown: the portal or the console. `template`: the template of the
    whole page. `home`, `delete`: the names of the URLs of the page, and of the deletion of a saved query. `context`:
    the values that the header and menu of the page need.
    """

    template: str = "sigma/sql.html"
    home: str = "sigma:sql"
    delete: str = "sigma:sql-delete"
    context: Mapping[str, Any] = field(default_factory=dict)


@page
def sql(request: HttpRequest, principal: Principal) -> HttpResponse:
    return answer(request, principal, Place())


@page
@require_POST
def delete(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    return delete_saved(request, principal, number, Place())


def answer(request: HttpRequest, principal: Principal, place: Place) -> HttpResponse:
    """Show the form (GET), run a query (POST `do=run`), return its result as a file (POST `do=csv` or `do=parquet`), or
    save the query (POST `do=save`). Raises `NotFound` if the URL names a query that does not exist.
    """
    if request.method != "POST":
        context = _context(request, principal, _linked(request, principal), place)
        return render(request, place.template, context)
    given = given_in(request.POST, "cell", "ready", "days", "title", "tenant", "do")
    given["query"] = request.POST.get("query", "")
    context = _context(request, principal, given, place)
    with problem_kept(context):
        if given["do"] == "save":
            saved_queries.query_save(
                principal=principal,
                title=given["title"],
                query=given["query"],
                tenant=given["tenant"],
                now=timezone.now(),
            )
            messages.success(request, _("The query %s was saved.") % given["title"])
            return redirect(place.home)
        form = Form(given["do"]) if given["do"] in CONTENT_TYPES else Form.JSON
        found = _answer(request, principal, given, form)
        if form is not Form.JSON:
            return file_answer(f"result.{form.value}", found.body, CONTENT_TYPES[form])
        context |= _result(found, given["ready"])
    return rendered(request, place.template, context)


def delete_saved(request: HttpRequest, principal: Principal, number: int, place: Place) -> HttpResponse:
    """Delete a saved query of the principal. Raises `NotFound` for any other query."""
    saved_queries.query_delete(principal=principal, number=number)
    messages.success(request, _("The query was deleted."))
    return redirect(place.home)


def _linked(request: HttpRequest, principal: Principal) -> dict[str, str]:
    """Return the values of the form's fields. If the URL names a ready or saved query, the form shows this query.
    Raises `NotFound` if the query does not exist.
    """
    given = given_in(request.GET, "cell", "ready", "saved")
    given |= {"days": str(asking.DEFAULT_DAYS), "query": EXAMPLE, "title": "", "tenant": ""}
    if given["ready"]:
        query = ready_queries.query_named(given["ready"])
        if query is None:
            raise NotFound("ready query", given["ready"])
        given["query"] = query.sql
    elif given["saved"]:
        number = whole_number(given["saved"])
        row = saved_queries.saved_queries(principal).filter(pk=number).first() if number is not None else None
        if row is None:
            raise NotFound("saved query", given["saved"])
        given |= {"query": row.query, "title": row.title, "tenant": row.tenant.name if row.tenant else ""}
    return given


def _context(request: HttpRequest, principal: Principal, given: dict[str, str], place: Place) -> dict[str, Any]:
    chosen = ready_queries.query_named(given["ready"]) if given.get("ready") else None
    return {
        **place.context,
        "given": given,
        "cells": cell_names(principal),
        "tenants": tenants_of(principal, Action.JOB_VIEW),
        "days": DAYS,
        "tables": TABLES.items(),
        "subjects": ready_queries.by_subject().items(),
        "chosen": chosen,
        "saved": list(saved_queries.saved_queries(principal)[: saved_queries.MOST_PER_PERSON]),
        "own_name": principal.name,
        "address": reverse(place.home),
        "delete": place.delete,
    }


def _answer(request: HttpRequest, principal: Principal, given: dict[str, str], form: Form) -> Answer:
    days, now = number_among(request.POST, "days", DAYS), timezone.now()
    return asking.ask(
        principal=principal,
        cell=selectors.cell_named(principal, given["cell"]),
        query=given["query"],
        now=now,
        parameters={"since": now - dt.timedelta(days=days)},
        form=form,
    )


def _result(answer: Answer, ready_name: str) -> dict[str, Any]:
    rows = msgspec.json.decode(answer.body)
    columns = [(column.name, column.type) for column in answer.head.columns]
    query = ready_queries.query_named(ready_name) if ready_name else None
    return {
        "ran": True,
        "columns": [(name, is_number(kind)) for name, kind in columns],
        "rows": [
            [(name, _cell(value), is_number(kind)) for value, (name, kind) in zip(row, columns, strict=True)]
            for row in rows[:SHOWN]
        ],
        "number": answer.head.rows,
        "more": answer.head.cut or len(rows) > SHOWN,
        "seconds": format_number(answer.head.seconds + answer.head.load_seconds),
        "chart": chart_of(columns, rows, query.chart if query else ()),
    }


def _cell(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "true" if value else "false"
        case float():
            return format_number(value)
        case list() | dict():
            return msgspec.json.encode(value).decode()
    return str(value)
