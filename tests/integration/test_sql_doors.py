"""Tests of SQL over REST, in `borgctl` and on the page, and of saved queries."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest
from django.utils import timezone

from portal.sigma.sql.charts import chart_of
from quota.models import Tenant
from quota.vocabulary.errors import NotFound, Rejected
from scheduling.history.infrastore import ready_queries, saved_queries
from scheduling.models import SavedQuery
from tests.integration import cli_world, portal_world, rows, world

TYPES = "SELECT type, count(*) AS events FROM instance_events GROUP BY type ORDER BY type"


@pytest.fixture
def place():
    return portal_world.make()


@pytest.mark.django_db
def test_rest_returns_rows_and_files(place) -> None:
    client = world.bearer(world.a_user("viewer"))

    def post(**body: object):
        return client.post("/api/v1/cells/cc/sql/", body, content_type="application/json")

    answer = post(query=TYPES).json()
    assert answer["rows"] == [["schedule", 1], ["submit", 3]]
    assert answer["columns"] == [{"name": "type", "type": "VARCHAR"}, {"name": "events", "type": "BIGINT"}]
    assert answer["cut"] is False
    csv = post(query=TYPES, format="csv")
    assert (csv.headers["Content-Type"], csv.content) == (
        "text/csv; charset=utf-8",
        b"type,events\nschedule,1\nsubmit,3\n",
    )
    table = pq.read_table(io.BytesIO(post(query=TYPES, format="parquet").content))
    assert table.to_pylist() == [{"type": "schedule", "events": 1}, {"type": "submit", "events": 3}]
    given = {"name": "jfoo", "since": "2020-01-01T00:00:00Z"}
    query = "SELECT user FROM jobs WHERE collection_name = :name AND created_at > :since"
    assert post(query=query, parameters=given).json()["rows"] == [["ubar"]]


@pytest.mark.django_db
def test_rest_rejects_with_the_place_of_the_error(place) -> None:
    client = world.bearer(world.a_user("viewer"))
    answer = client.post("/api/v1/cells/cc/sql/", {"query": "SELECT 1,\n x("}, content_type="application/json")
    assert (answer.status_code, answer.headers["Content-Type"]) == (422, "application/problem+json")
    assert (answer.json()["code"], answer.json()["figures"]["line"]) == ("query-invalid", 2)
    body = {"query": "SELECT 1", "parameters": {"since": "yesterday"}}
    answer = client.post("/api/v1/cells/cc/sql/", body, content_type="application/json")
    assert (answer.status_code, list(answer.json()["fields"])) == (422, ["since"])
    assert (
        client.post("/api/v1/cells/zz/sql/", {"query": "SELECT 1"}, content_type="application/json").status_code == 404
    )


@pytest.mark.django_db
def test_rest_lists_tables_and_ready_queries(place) -> None:
    answer = world.bearer(world.a_user("viewer")).get("/api/v1/cells/cc/sql/schema/").json()
    assert {"instance_usage", "collection_events", "jobs"} <= {table["name"] for table in answer["tables"]}
    assert len(answer["queries"]) == len(ready_queries.queries()) >= 25


@pytest.mark.django_db
def test_the_page_runs_a_query_and_draws_it(place) -> None:
    client = portal_world.signed_in("viewer")
    page = client.get("/sql/?ready=evictions-by-cause")
    assert page.status_code == 200
    assert "Evictions per task-week" in page.text
    assert "instance_usage" in page.text
    given = {"cell": "cc", "days": "7", "query": TYPES}
    page = client.post("/sql/", given | {"do": "run"})
    assert page.status_code == 200
    assert "schedule" in page.text
    assert 'width="1000" height="12"' in page.text  # the longest bar
    assert client.post("/sql/", given | {"do": "csv"}).content == b"type,events\nschedule,1\nsubmit,3\n"
    page = client.post("/sql/", given | {"do": "run", "query": "SELECT '<b>' AS x"})
    assert "&lt;b&gt;" in page.text
    page = client.post("/sql/", given | {"do": "run", "query": "SELECT FROM"})
    assert page.status_code == 422
    assert "SELECT FROM" in page.text
    assert client.get("/sql/?ready=nope").status_code == 404


@pytest.mark.django_db
def test_the_console_has_the_page_too(place) -> None:
    sre = portal_world.signed_in("sre")
    page = sre.get("/admin/sql/?ready=evictions-by-cause")
    assert page.status_code == 200
    assert "Evictions per task-week" in page.text
    given = {"cell": "cc", "days": "7", "query": TYPES}
    assert "schedule" in sre.post("/admin/sql/", given | {"do": "run"}).text
    assert sre.post("/admin/sql/", given | {"do": "csv"}).content == b"type,events\nschedule,1\nsubmit,3\n"
    page = sre.post("/admin/sql/", given | {"do": "run", "query": "SELECT FROM"})
    assert (page.status_code, "SELECT FROM" in page.text) == (422, True)
    assert sre.post("/admin/sql/", given | {"do": "save", "title": "By type", "tenant": ""}).url == "/admin/sql/"
    row = SavedQuery.objects.get()
    assert f'action="/admin/sql/saved/{row.pk}/delete/"' in sre.get(f"/admin/sql/?saved={row.pk}").text
    assert "By type" in portal_world.signed_in("sre").get("/sql/").text
    assert sre.post(f"/admin/sql/saved/{row.pk}/delete/").url == "/admin/sql/"
    assert "there is no saved query" in sre.post(f"/admin/sql/saved/{row.pk}/delete/", follow=True).text
    assert sre.get("/admin/sql/?ready=nope").status_code == 302
    assert not SavedQuery.objects.exists()
    for path in ("/admin/sql/", f"/admin/sql/saved/{row.pk}/delete/"):
        assert portal_world.signed_in("owner").post(path, given | {"do": "run"}, follow=True).status_code == 403


@pytest.mark.django_db
def test_saved_queries_are_private_until_shared(place) -> None:
    owner, operator, stranger = (portal_world.signed_in(name) for name in ("owner", "operator", "stranger"))
    given = {"cell": "cc", "days": "7", "query": TYPES, "title": "By type", "tenant": "", "do": "save"}
    assert owner.post("/sql/", given).status_code == 302
    assert "By type" in owner.get("/sql/").text
    assert "By type" not in operator.get("/sql/").text
    assert owner.post("/sql/", given | {"tenant": "ubar", "query": "SELECT 2"}).status_code == 302
    row = SavedQuery.objects.get()
    assert (row.owner, row.tenant, row.query) == ("owner", Tenant.objects.get(name="ubar"), "SELECT 2")
    assert "SELECT 2" in operator.get(f"/sql/?saved={row.pk}").text
    assert "By type" not in stranger.get("/sql/").text
    assert stranger.get(f"/sql/?saved={row.pk}").status_code == 404
    assert stranger.post("/sql/", given | {"tenant": "ubar"}).status_code == 404
    for client, status in ((stranger, 404), (operator, 404), (owner, 302)):
        assert client.post(f"/sql/saved/{row.pk}/delete/").status_code == status
    assert not SavedQuery.objects.exists()


@pytest.mark.django_db
def test_values_of_saved_queries_are_checked(place) -> None:
    ann = world.principal("ann", tenant=place.tenant)
    for title, query, field in (("", "SELECT 1", "title"), ("x" * 101, "SELECT 1", "title"), ("x", " ", "query")):
        with pytest.raises(Rejected) as caught:
            saved_queries.query_save(principal=ann, title=title, query=query, tenant="", now=timezone.now())
        assert list(caught.value.fields) == [field]
    with pytest.raises(NotFound):
        saved_queries.query_save(principal=ann, title="x", query="SELECT 1", tenant="other", now=timezone.now())


@pytest.mark.django_db(transaction=True)
def test_borgctl_prints_and_writes_results(shared_portal, tmp_path) -> None:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    portal_world.place(rows.a_job(cell, tenant), 0, rows.a_machine(cell))
    cli = cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)
    assert cli.out("sql", TYPES).split() == ["type", "events", "schedule", "1", "submit", "3"]
    assert cli.json("sql", TYPES)["rows"] == [["schedule", 1], ["submit", 3]]
    (tmp_path / "q.sql").write_text("SELECT user FROM jobs WHERE collection_name = :job")
    assert cli.out("sql", "--file", "q.sql", "-p", "job=jfoo", "--csv") == "user\nubar\n"
    assert "bytes are in" in cli.out("sql", TYPES, "--parquet", "r.parquet")
    assert pq.read_table(tmp_path / "r.parquet").num_rows == 2
    assert "job.submitted" in cli.out("sql", "events-per-kind")
    message, problem = cli.failing("sql", "SELECT *\nFROM nothing_here")
    assert "line 2, column 6" in message
    assert (problem["code"], problem["figures"]) == ("query-invalid", {"line": 2, "column": 6})
    assert "there is no ready query 'nope'" in cli.failing("sql", "nope", status=2)[0]


def test_charts_fit_the_columns() -> None:
    days = [["2026-11-26T00:00:00Z", 3, "a"], ["2026-11-27T00:00:00Z", 5, "a"], ["2026-11-27T00:00:00Z", 1, "b"]]
    columns = [("day", "TIMESTAMP"), ("n", "BIGINT"), ("kind", "VARCHAR")]
    chart = chart_of(columns, days, ["day", "n", "kind"])
    assert chart is not None
    assert chart.plot is not None
    assert [line.name for line in chart.plot.lines] == ["a", "b"]
    bars = chart_of([("kind", "VARCHAR"), ("n", "DOUBLE")], [["a", 4.0], ["b", 1.0]])
    assert bars is not None
    assert [(bar.name, bar.width, bar.value) for bar in bars.bars] == [("a", 1000, "4"), ("b", 250, "1")]
    assert chart_of([("a", "VARCHAR"), ("b", "VARCHAR")], [["a", "b"], ["c", "d"]]) is None
    assert chart_of([("a", "BIGINT")], [[1], [2]]) is None
