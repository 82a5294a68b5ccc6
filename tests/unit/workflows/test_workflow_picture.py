"""Tests of the picture of a graph."""

from __future__ import annotations

from portal.sigma.reads.workflow_picture import BOX_HEIGHT, BOX_WIDTH, GraphNode, picture


def nodes(*given: tuple[str, int, list[str]]) -> list[GraphNode]:
    return [GraphNode(name, layer, "waiting", after, {}) for name, layer, after in given]


def test_nodes_are_in_columns_by_layer_and_do_not_overlap() -> None:
    found = picture(nodes(("a", 0, []), ("b", 1, ["a"]), ("c", 1, ["a"]), ("d", 2, ["b", "c"])))
    boxes = {box.name: box for box in found.boxes}
    assert boxes["a"].x < boxes["b"].x == boxes["c"].x < boxes["d"].x
    assert abs(boxes["b"].y - boxes["c"].y) > BOX_HEIGHT
    assert boxes["a"].y == boxes["d"].y  # in the middle
    assert len(found.lines) == 4
    assert found.width > boxes["d"].x + BOX_WIDTH
    assert all(box.y >= 0 and box.y + BOX_HEIGHT <= found.height for box in found.boxes)


def test_parallel_chains_have_no_crossing_lines() -> None:
    chains = [(f"{name}{step}", step, [f"{name}{step - 1}"] if step else []) for name in "zyx" for step in range(4)]
    boxes = {box.name: box for box in picture(nodes(*chains)).boxes}
    assert all(len({boxes[f"{name}{step}"].y for step in range(4)}) == 1 for name in "zyx")


def test_a_large_graph_is_a_grid_by_layer() -> None:
    found = picture(nodes(*((f"n{i}", i % 3, []) for i in range(300))))
    assert (found.boxes, found.lines) == ((), ())
    assert [(layer, len(boxes)) for layer, boxes in found.grid] == [(0, 100), (1, 100), (2, 100)]


def test_a_node_with_branches_shows_how_many_succeeded() -> None:
    (box,) = picture([GraphNode("a" * 30, 0, "running", [], {"succeeded": 3, "ready": 5})]).boxes
    assert (box.detail, box.tone, len(box.short)) == ("3/8", "good", 20)
    assert box.title == f"{'a' * 30}: running, 3/8"
