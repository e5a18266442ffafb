"""The module graph as a figure: boxes in layers from top to bottom, arrows for data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sonde.graph.model import node_id
from sonde.plot import theme
from sonde.plot.source import RunLike, ask, opened
from sonde.views import ids
from sonde.views.questions import LevelQuestion
from sonde.views.specs import GraphLevel, LevelEdge, LevelNode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH: Final = 1.7
_HEIGHT: Final = 0.46
_GAP: Final = (0.35, 0.42)
_FILL: Final = {"module": "#dbe6f4", "input": "#e8e8e8", "output": "#e8e8e8", "attach": "#f6e7c9"}


def graph(
    run: RunLike, module: str = "", *, group_repeats: bool = True, ax: Axes | None = None
) -> Figure:
    """The inside a module, the whole model by default: its calls and the data between them."""
    node = ids.of_name(node_id(module, 0)) if module else None
    question = LevelQuestion(run="run", node=node, fold=group_repeats)
    spec: GraphLevel = ask(opened(run), "level", question)
    places = layered(spec.nodes, spec.edges)
    depth = 1 + max((y for _, y in places.values()), default=0)
    breadth = 1 + max((abs(x) for x, _ in places.values()), default=0.0)
    with theme.styled() as plt:
        size = (min(max(2.2 * breadth, 3.0), 14.0), min(max(0.62 * depth, 1.6), 14.0))
        figure, ax = theme.one(plt, ax, size)
        draw(ax, spec, places)
    return figure


def draw(ax: Axes, spec: GraphLevel, places: Mapping[str, tuple[float, int]]) -> None:
    """Draw a level of the graph with its boxes at these places (column, layer)."""
    from matplotlib.patches import FancyBboxPatch

    at = {key: (x * (_WIDTH + _GAP[0]), -y * (_HEIGHT + _GAP[1])) for key, (x, y) in places.items()}
    for edge in spec.edges:
        (x0, y0), (x1, y1) = at[edge.source], at[edge.target]
        is_far = abs(places[edge.source][1] - places[edge.target][1]) > 1
        bend = f"arc3,rad={0.25 if is_far and x0 == x1 else 0.0}"
        ax.annotate(
            "",
            (x1, y1 + _HEIGHT / 2),
            (x0, y0 - _HEIGHT / 2),
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#666666",
                "linewidth": 0.7,
                "connectionstyle": bend,
            },
        )
    for node in spec.nodes:
        x, y = at[node.id]
        box = FancyBboxPatch(
            (x - _WIDTH / 2, y - _HEIGHT / 2),
            _WIDTH,
            _HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=_FILL.get(node.kind, "#dbe6f4"),
            edgecolor="#7a8aa0",
            linewidth=0.6,
        )
        ax.add_patch(box)
        ax.text(x, y, box_label(node), ha="center", va="center", fontsize=6.5, clip_on=True)
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.autoscale_view()
    ax.set_title(spec.path or spec.type, loc="left")


def box_label(node: LevelNode) -> str:
    """Name and type of a box; how many it stands for."""
    times = f" ×{node.count}" if node.count > 1 else ""
    kind = f"\n{node.type}" if node.type and node.type != node.label else ""
    return f"{theme.cut(node.label, 26)}{times}{theme.cut(kind, 28)}"


def layered(nodes: Sequence[LevelNode], edges: Sequence[LevelEdge]) -> dict[str, tuple[float, int]]:
    """Column (centred on 0) and layer of each box: below all that feeds it, near their middle."""
    sources: dict[str, list[str]] = {node.id: [] for node in nodes}
    for edge in edges:
        if edge.source in sources and edge.target in sources and edge.source != edge.target:
            sources[edge.target].append(edge.source)
    order = {node.id: i for i, node in enumerate(nodes)}
    depth: dict[str, int] = {}
    for node in nodes:  # in the order of calls, so sources come first; what loops back is ignored
        known = [depth[s] for s in sources[node.id] if s in depth]
        depth[node.id] = 1 + max(known) if known else 0
    if not edges:
        return {key: (0.0, i) for key, i in order.items()}
    rows: dict[int, list[str]] = {}
    for key, layer in depth.items():
        rows.setdefault(layer, []).append(key)
    column: dict[str, float] = {}
    for layer in sorted(rows):
        row = sorted(rows[layer], key=lambda key: (_middle(sources[key], column), order[key]))
        for i, key in enumerate(row):
            column[key] = i - (len(row) - 1) / 2
    return {key: (column[key], depth[key]) for key in order}


def _middle(sources: Sequence[str], column: Mapping[str, float]) -> float:
    known = [column[s] for s in sources if s in column]
    return sum(known) / len(known) if known else 0.0
