"""The picture of the graph of a workflow: a box per node in columns by layer, with lines between them. Pure.

A graph with more than `MOST_BOXES` nodes becomes a grid instead: a row of small squares per layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_BOXES = 200
MOST_LINES = 1_000  # with more, the picture would be too dense
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, EDGE = 168, 44, 56, 14, 8
_SHOWN = 20  # characters of a name
# The tones of the colours for each state.
TONES = {
    "running": "good",
    "succeeded": "done",
    "ready": "wait",
    "waiting": "plain",
    "skipped": "plain",
    "failed": "bad",
    "cancelled": "bad",
}


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node as the picture needs it. `after`: the names of the nodes before it. `branches`: how many of its branches
    are in each state; empty without `for_each`. `job`: the name of its newest job, or "".
    """

    name: str
    layer: int
    state: str
    after: Sequence[str]
    branches: Mapping[str, int]
    job: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A node in the picture, with the place of its upper left corner in pixels. `detail`: its state, or how many of its
    branches have succeeded. `title`: the text for screen readers and tooltips.
    """

    name: str
    short: str
    tone: str
    state: str
    detail: str
    title: str
    job: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture. `lines`: paths in the syntax of SVG. `grid`: boxes by layer, if there are too many for a graph."""

    width: int
    height: int
    boxes: Sequence[Box]
    lines: Sequence[str]
    grid: Sequence[tuple[int, Sequence[Box]]]


def picture(nodes: Sequence[GraphNode]) -> Picture:
    """Return the picture of a graph. Nodes of a layer are in the order that keeps their lines short: each comes near
    the middle of the nodes before it.
    """
    by_layer: defaultdict[int, list[GraphNode]] = defaultdict(list)
    for node in nodes:
        by_layer[node.layer].append(node)
    edges = sum(len(node.after) for node in nodes)
    if len(nodes) > MOST_BOXES or edges > MOST_LINES:
        grid = [(layer, [_box(node, 0, 0) for node in by_layer[layer]]) for layer in sorted(by_layer)]
        return Picture(0, 0, (), (), grid)
    place: dict[str, float] = {}
    boxes: dict[str, Box] = {}
    tallest = max(len(layer) for layer in by_layer.values())
    height = tallest * (BOX_HEIGHT + GAP_Y) - GAP_Y + 2 * EDGE
    for number in sorted(by_layer):
        layer = sorted(by_layer[number], key=lambda node: (_middle(node, place), node.name))
        top = (height - len(layer) * (BOX_HEIGHT + GAP_Y) + GAP_Y) // 2
        for row, node in enumerate(layer):
            y = top + row * (BOX_HEIGHT + GAP_Y)
            place[node.name] = float(y)
            boxes[node.name] = _box(node, EDGE + number * (BOX_WIDTH + GAP_X), y)
    lines = [_line(boxes[before], boxes[node.name]) for node in nodes for before in node.after if before in boxes]
    width = (max(by_layer) + 1) * (BOX_WIDTH + GAP_X) - GAP_X + 2 * EDGE
    return Picture(width, height, list(boxes.values()), lines, ())


def _middle(node: GraphNode, place: Mapping[str, float]) -> float:
    known = [place[before] for before in node.after if before in place]
    return sum(known) / len(known) if known else 0.0


def _line(start: Box, end: Box) -> str:
    x1, y1 = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    x2, y2 = end.x, end.y + BOX_HEIGHT // 2
    bend = (x1 + x2) // 2 if end.x - start.x <= BOX_WIDTH + GAP_X else x1 + GAP_X // 2
    return f"M{x1} {y1}C{bend} {y1} {max(bend, x2 - GAP_X // 2)} {y2} {x2} {y2}"


def _box(node: GraphNode, x: int, y: int) -> Box:
    short = node.name if len(node.name) <= _SHOWN else f"{node.name[: _SHOWN - 1]}…"
    counts = Counter(dict(node.branches))
    total = sum(counts.values())
    detail = f"{counts['succeeded']}/{total}" if total else ""
    title = f"{node.name}: {node.state}" + (f", {detail}" if detail else "")
    return Box(node.name, short, TONES.get(node.state, "plain"), node.state, detail, title, node.job, x, y)
