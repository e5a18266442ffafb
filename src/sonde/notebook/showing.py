"""Showing a run in a notebook: `sonde.show(run)`."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from sonde._errors import SondeError
from sonde._require import require
from sonde.notebook.kernel_server import server_for
from sonde.notebook.widget import widget_class
from sonde.plot import accessor
from sonde.present.archive import AnswerBlock, Archive, Question
from sonde.present.report.wishes import Wishes
from sonde.store.reading.run import Run, open_run

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from sonde.watching import Watch

HEIGHT: Final = 640
_SNAPSHOT_BYTES: Final = 4_000_000
_DPI: Final = 110


def show(
    run: Run | Watch | str | os.PathLike[str], *, height: int = HEIGHT, live: bool = True
) -> AnyWidget:
    """The explorer in the output of a cell, live while this kernel or any other process trains.

    Args:
        run: A `Run`, the path of one, or the `Watch` that records it.
        height: Of the output, in pixels.
        live: Whether the widget follows the run and can ask for more than it begins with.

    Returns a widget for JupyterLab, Jupyter Notebook, marimo, VS Code and Colab. It needs
    `pip install 'sonde[notebook]'`.
    """
    return make(opened(run), lambda run_id: f"#/overview?run={run_id}", height=height, live=live)


def opened(run: Run | Watch | str | os.PathLike[str]) -> Run:
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
    live: bool = True,
    solo: str = "",
    questions: Callable[[Wishes], Sequence[Question]] = lambda _wishes: (),
    picture: str = "heatmap",
    options: dict[str, object] | None = None,
) -> AnyWidget:
    """A widget. `questions` are answered ahead; `picture` is the figure that stays in the file."""
    widget = widget_class()  # fails first where anywidget is missing
    wishes = Wishes(run, (), _SNAPSHOT_BYTES, is_still=not live)
    asked = [(view, question) for view, question in (*wishes.first(), *questions(wishes))]
    sent = _snapshot(wishes, asked)
    server = server_for(run.path) if live else None
    return widget(
        server,
        wishes.id,
        asked=asked,
        archive=sent,
        address=address(wishes.id),
        height=height,
        solo=solo,
        picture=_picture(run, picture, options or {}),
    )


def _snapshot(wishes: Wishes, questions: Sequence[Question]) -> dict[str, str]:
    """What the widget shows first, by the names of blocks."""
    archive, block = Archive(_SNAPSHOT_BYTES), AnswerBlock()
    for asked in (*wishes.fixed(), *wishes.answers(questions)):
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


def _picture(run: Run, name: str, options: dict[str, object]) -> bytes | None:
    """The figure as PNG; None where there is nothing to draw yet, or no matplotlib."""
    try:
        figure = getattr(accessor.RunPlots(run), name)(**options)
        made = io.BytesIO()
        figure.savefig(made, format="png", dpi=_DPI, bbox_inches="tight")
        # One that stays open is shown below the cell, too.
        require("matplotlib.pyplot", extra="notebook").close(figure)
    except (ImportError, SondeError):
        return None
    return made.getvalue()
