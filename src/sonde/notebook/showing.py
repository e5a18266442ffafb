"""Showing a run in a notebook: `sonde.show(run)`."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, Union
from urllib.parse import quote

from sonde._errors import SondeError
from sonde._require import require
from sonde.notebook.kernel_server import server_for
from sonde.notebook.widget import widget_class
from sonde.plot.accessor import RunPlots
from sonde.present.archive import AnswerBlock, Archive, Question
from sonde.present.report.wishes import Wishes
from sonde.store.reading.run import Run, open_run
from sonde.views.routes import ROUTES

if TYPE_CHECKING:
    from anywidget import AnyWidget
    from matplotlib.figure import Figure

    from sonde.watching import Watch

Showable: TypeAlias = Union[Run, "Watch", str, os.PathLike[str]]
"""A run, the watch that records it, or its path."""

HEIGHT: Final = 640
_SNAPSHOT_BYTES: Final = 4_000_000
_DPI: Final = 110


def show(run: Showable, *others: Showable, height: int = HEIGHT, live: bool = True) -> AnyWidget:
    """The explorer in the output of a cell, live while this kernel or any other process trains.

    Args:
        run: A `Run`, the path of one, or the `Watch` that records it.
        others: Runs to compare it with, on the Compare page.
        height: Of the output, in pixels.
        live: Whether the widget follows the run and can ask for more than it begins with.

    Returns a widget for JupyterLab, Jupyter Notebook, marimo, VS Code and Colab. It needs
    `pip install 'sonde[notebook]'`.
    """
    page = "compare" if others else "overview"
    return make(
        opened(run),
        lambda run_ids: f"#/{page}?run={run_ids}",
        others=[opened(one) for one in others],
        height=height,
        live=live,
    )


def opened(run: Showable) -> Run:
    """The run that is meant."""
    if isinstance(run, Run):
        return run
    if isinstance(run, str | os.PathLike):
        return open_run(run)
    path = getattr(run, "path", None)
    if path is None:
        raise SondeError(
            f"Cannot show {type(run).__name__!r}: pass a run, the path of one, or a watch that "
            "records. A watch that is switched off has no run."
        )
    return open_run(path)


def make(
    run: Run,
    address: Callable[[str], str],
    *,
    height: int,
    others: Sequence[Run] = (),
    live: bool = True,
    solo: str = "",
    questions: Callable[[Wishes], Sequence[Question]] = lambda _wishes: (),
    picture: Callable[[RunPlots], Figure] = lambda plots: plots.heatmap(),
) -> AnyWidget:
    """A widget. `questions` are answered ahead; `picture` is the figure that stays in the file.

    `address` gets the ids of the run and the others, as an address has them.
    """
    widget = widget_class()  # fails first where anywidget is missing
    wishes = Wishes(run, (), _SNAPSHOT_BYTES, others=others, is_still=not live)
    asked = [*wishes.first(), *wishes.pairs.first(), *questions(wishes)]
    sent = _snapshot(wishes, asked)
    server = server_for(_folder(run, others)) if live else None
    ids = (wishes.id, *(row.id for row in wishes.pairs.rows))
    return widget(
        server,
        wishes.id,
        asked=asked,
        archive=sent,
        address=address(",".join(quote(one, safe="") for one in ids)),
        height=height,
        solo=solo,
        picture=_picture(run, picture),
    )


def _folder(run: Run, others: Sequence[Run]) -> str:
    """What a server has to show: the run, or the folder of all of them."""
    if not others:
        return run.path
    folders = {os.path.dirname(os.path.abspath(one.path)) for one in (run, *others)}
    if len(folders) > 1:
        raise SondeError(
            "These runs lie in different folders, so no server can follow them together. "
            "Show them with `live=False`."
        )
    return folders.pop()


def _snapshot(wishes: Wishes, questions: Sequence[Question]) -> dict[str, str]:
    """What the widget shows first, by the names of blocks."""
    archive, block = Archive(_SNAPSHOT_BYTES), AnswerBlock()
    single = [one for one in questions if not ROUTES[one[0]].of_several]
    paired = [one for one in questions if ROUTES[one[0]].of_several]
    for asked in (*wishes.fixed(), *wishes.answers(single), *wishes.pairs.answers(paired)):
        block.put(asked, wishes.state)
    archive.add(block, is_needed=True)
    about = {
        "made_ms": time.time() * 1e3,
        "version": wishes.state.version,
        "was_live": wishes.was_live,
        "holds": [],
        "left_out": [],
    }
    return archive.named(about)


def _picture(run: Run, draw: Callable[[RunPlots], Figure]) -> bytes | None:
    """The figure as PNG; None where there is nothing to draw yet, or no matplotlib."""
    try:
        figure = draw(RunPlots(run))
        made = io.BytesIO()
        figure.savefig(made, format="png", dpi=_DPI, bbox_inches="tight")
        # One that stays open is shown below the cell, too.
        require("matplotlib.pyplot", extra="notebook").close(figure)
    except (ImportError, SondeError):
        return None
    return made.getvalue()
