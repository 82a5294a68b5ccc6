"""Tests of tables, page links and filters: what their links change, and how rows are sorted."""

from __future__ import annotations

import pytest

from portal.parts import filters
from portal.parts.empty import Empty
from portal.parts.paging import by_cursor, by_number
from portal.parts.tables import Cell, Column, Table, ordered, sorting_of

COLUMNS = (Column("Job", order="name"), Column("State"), Column("CPU", number=True, order="cpu", descending=True))
NONE = Empty("There are no jobs.")


def table(value: str = "") -> Table:
    return Table("Jobs", COLUMNS, [], NONE, sorting=sorting_of({"sort": value}, COLUMNS, default="-cpu"))


def test_a_click_on_the_column_in_force_turns_its_order_around() -> None:
    name, state, cpu = table("-cpu").headings
    assert (cpu.aria_sort, cpu.changes and cpu.changes["sort"]) == ("descending", "cpu")
    assert (name.aria_sort, name.changes and name.changes["sort"]) == ("", "name")
    assert (state.aria_sort, state.changes) == ("", None)
    name, _, cpu = table("name").headings
    assert (name.aria_sort, name.changes and name.changes["sort"]) == ("ascending", "-name")
    assert cpu.changes is not None
    assert cpu.changes["sort"] == "-cpu"  # the first click on a column shows its largest value first


def test_another_order_starts_at_the_first_page() -> None:
    changes = table().headings[0].changes
    assert changes is not None
    assert {name: changes[name] for name in ("page", "before", "after")} == {
        "page": None,
        "before": None,
        "after": None,
    }


@pytest.mark.parametrize("value", ["", "State", "-", "--cpu", "password", "-state"])
def test_an_unknown_order_is_the_default(value) -> None:
    assert sorting_of({"sort": value}, COLUMNS, default="-cpu").value == "-cpu"


def test_rows_without_a_value_come_last_in_both_directions() -> None:
    rows = [("a", 2), ("b", None), ("c", 5), ("d", 2)]
    keys = {"cpu": lambda row: row[1], "name": lambda row: row[0]}
    names = {
        value: "".join(row[0] for row in ordered(rows, sorting_of({"sort": value}, COLUMNS, default="name"), keys))
        for value in ("cpu", "-cpu", "name", "-name")
    }
    assert names == {"cpu": "adcb", "-cpu": "cadb", "name": "abcd", "-name": "dcba"}


def test_cells_are_in_the_columns_of_their_rows() -> None:
    one = Table("Jobs", COLUMNS, [("web", Cell("up", tone="good"), None)], NONE, total=("Total", "", 7))
    ((name, state, cpu),) = one.lines
    assert (name[1].text, state[1].tone, cpu[1].text) == ("web", "good", "–")
    assert [column.title for column, _cell in one.total_line] == ["Job", "State", "CPU"]
    assert table().total_line == []


def test_a_row_with_a_missing_cell_is_an_error() -> None:
    with pytest.raises(ValueError, match="argument"):
        _ = Table("Jobs", COLUMNS, [("web", "up")], NONE).lines


def test_pages_by_number_have_links_except_at_the_ends() -> None:
    assert by_number(1, 1, 5).single
    first, middle, last = by_number(1, 3, 109), by_number(2, 3, 109), by_number(3, 3, 109)
    assert (first.before, first.after) == (None, {"page": 2})
    assert (middle.before, middle.after) == ({"page": 1}, {"page": 3})
    assert (last.before, last.after) == ({"page": 2}, None)


def test_pages_by_cursor_never_ask_for_both_directions() -> None:
    paging = by_cursor(newer="9.0", older="7.1")
    assert paging.before == {"page": None, "before": None, "after": "9.0"}
    assert paging.after == {"page": None, "before": "7.1", "after": None}
    assert by_cursor().single


def filters_with(**chosen: str) -> filters.Filters:
    given = {"q": "", "state": "live", "cell": "", **chosen}
    return filters.Filters(
        (
            filters.search("q", "Search", given["q"]),
            filters.choice("state", "State", given["state"], ["live", ("dead", "ended")], default="live"),
            filters.choice("cell", "Cell", given["cell"], ["cc"], everything="any"),
            filters.check("teams", "include teams", bool(given.get("teams"))),
        ),
        "Filter",
    )


def test_only_filters_in_force_have_a_chip() -> None:
    assert filters_with().chips == []
    chips = filters_with(q="web", state="dead", teams="yes").chips
    assert [chip.text for chip in chips] == ["Search: web", "State: ended", "include teams"]
    assert chips[1].changes == {"page": None, "before": None, "after": None, "state": None}


def test_one_link_removes_all_filters() -> None:
    cleared = filters_with(q="web").cleared
    assert set(cleared) == {"page", "before", "after", "q", "state", "cell", "teams"}
    assert set(cleared.values()) == {None}


def test_the_choice_that_does_not_restrict_the_list_comes_first() -> None:
    assert filters_with().fields[2].choices == (("", "any"), ("cc", "cc"))
