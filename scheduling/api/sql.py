"""REST views of Infrastore: SQL queries over the history of a cell (§2.6), and the schema for them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.csv_files import file_answer
from quota.vocabulary.errors import invalid
from scheduling.api.base import CellView, valid
from scheduling.history.infrastore import asking, ready_queries
from scheduling.history.infrastore.columns import TABLES
from scheduling.history.infrastore.process.protocol import Form

CONTENT_TYPES = {Form.CSV: "text/csv; charset=utf-8", Form.PARQUET: "application/vnd.apache.parquet"}
_MOST_PARAMETERS = 20
_TIMES = ("since", "until")


class QuerySerializer(serializers.Serializer[Any]):
    query = serializers.CharField(
        max_length=20_000, trim_whitespace=False, help_text="One SELECT, or WITH … SELECT, in the dialect of DuckDB."
    )
    format = serializers.ChoiceField([form.value for form in Form], default=Form.JSON.value)
    parameters = serializers.DictField(
        child=serializers.CharField(max_length=1000, allow_blank=True),
        default=dict,
        help_text="Values for :name in the query. :since and :until are times; their defaults are seven days ago and"
        " now.",
    )


class ResultColumnSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    type = serializers.CharField()


class ResultSerializer(serializers.Serializer[Any]):
    columns = ResultColumnSerializer(many=True)
    rows = serializers.ListField(child=serializers.ListField(child=serializers.JSONField()))
    cut = serializers.BooleanField(help_text="Whether the query found more rows than the answer contains.")
    seconds = serializers.FloatField()


class SchemaColumnSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    type = serializers.CharField()
    about = serializers.CharField()


class SchemaTableSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    about = serializers.CharField()
    columns = SchemaColumnSerializer(many=True)


class ReadyQuerySerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    about = serializers.CharField()
    query = serializers.CharField(source="sql")


class SqlSchemaSerializer(serializers.Serializer[Any]):
    tables = SchemaTableSerializer(many=True)
    queries = ReadyQuerySerializer(many=True)


class SqlView(CellView):
    @extend_schema(
        operation_id="sql_query",
        request=QuerySerializer,
        responses={
            200: OpenApiResponse(ResultSerializer),
            (200, "text/csv"): OpenApiTypes.BINARY,
            (200, "application/vnd.apache.parquet"): OpenApiTypes.BINARY,
        },
    )
    def post(self, request: Request, cell: str) -> HttpResponse | Response:
        """Run an SQL query over the history of a cell. You see the rows of your tenants, and SREs see all rows.

        An answer in JSON has at most 10,000 rows, and one in CSV or Parquet 1,000,000.
        """
        found, given = self.cell(cell), valid(QuerySerializer, request.data)
        form = Form(given["format"])
        answer = asking.ask(
            principal=self.principal,
            cell=found,
            query=given["query"],
            now=timezone.now(),
            parameters=values_of(given["parameters"]),
            form=form,
        )
        if form is not Form.JSON:
            return file_answer(f"result.{form.value}", answer.body, CONTENT_TYPES[form])
        return Response(
            {
                "columns": [{"name": one.name, "type": one.type} for one in answer.head.columns],
                "rows": msgspec.Raw(answer.body),
                "cut": answer.head.cut,
                "seconds": answer.head.seconds + answer.head.load_seconds,
            }
        )


class SqlSchemaView(CellView):
    @extend_schema(operation_id="sql_schema", responses=SqlSchemaSerializer)
    def get(self, request: Request, cell: str) -> Response:
        """Return the tables that SQL queries can read, and a library of ready queries."""
        self.cell(cell)
        tables = [
            {"name": name, "about": table.about, "columns": [one._asdict() for one in table.columns]}
            for name, table in TABLES.items()
        ]
        return Response(SqlSchemaSerializer({"tables": tables, "queries": ready_queries.queries()}).data)


def values_of(given: dict[str, str]) -> dict[str, str | dt.datetime]:
    """Return the values of the parameters of an SQL query, by name. Texts for `since` and `until` become times. Raises
    `Rejected` if a time is not valid.
    """
    if len(given) > _MOST_PARAMETERS:
        raise invalid("parameters", f"{len(given)} parameters are given; give at most {_MOST_PARAMETERS}")
    return {name: _time(name, value) if name in _TIMES else value for name, value in given.items()}


def _time(name: str, text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        raise invalid(name, f"{text[:50]!r} is not a time; write it like 2027-01-31T08:00:00+01:00") from None
