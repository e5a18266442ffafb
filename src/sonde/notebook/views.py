"""Single views of a run in a notebook: `run.view.heatmap("output")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from sonde._errors import SondeError
from sonde.notebook.showing import HEIGHT, make
from sonde.present.archive import Question
from sonde.present.report.wishes import Wishes
from sonde.store.reading.run import Run
from sonde.views import ids
from sonde.views import questions as q

if TYPE_CHECKING:
    from anywidget import AnyWidget

_CHART: Final = 420
_LINES: Final = 150


class RunViews:
    """Widgets that show one view of a run each, with the timeline below.

    A click on a cell of a heatmap opens the histogram of that tensor at that step; a click on the
    loss moves the step. They are drawn from the same specs as the page and `run.plot`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def heatmap(
        self,
        kind: str | None = None,
        stat: str = "rms",
        *,
        metric: str | None = None,
        under: str | None = None,
        step: int | None = None,
        height: int = HEIGHT,
        live: bool = True,
    ) -> AnyWidget:
        """One statistic of all tensors of a kind, or one metric of all modules, over the steps."""
        below = None if under is None else ids.of_name(under)
        self._run.catalogue().kinds(kind)  # an unknown kind is an error with those there are
        more = {"kind": kind, "stat": stat, "metric": metric, "under": below, "step": step}

        def questions(wishes: Wishes) -> list[Question]:
            asked = q.HeatQuestion(
                run=wishes.id,
                kind=None if metric else kind or wishes.header.kind,
                stat=stat,
                metric=metric,
                under=below,
                columns=1024,
            )
            return [("heat", asked)]

        options = {"kind": kind, "stat": stat, "metric": metric, "under": under}
        return self._solo("heatmap", "layers", more, height, live, questions, options)

    def kymograph(
        self,
        site: str,
        kind: str | None = None,
        *,
        step: int | None = None,
        scale: str = "auto",
        height: int = HEIGHT,
        live: bool = True,
    ) -> AnyWidget:
        """How the values of one tensor are spread, over the steps and at the cursor."""
        name, module = self._site(site, kind)
        more = {"site": name, "under": module, "step": step, "scale": scale}

        def questions(wishes: Wishes) -> list[Question]:
            over_time = q.KymographQuestion(run=wishes.id, site=name, scale=scale)  # type: ignore[arg-type]  # checked by the view
            return [
                ("panel", q.PanelQuestion(run=wishes.id, module=module)),
                ("kymograph", over_time),
                ("section", q.SectionQuestion(run=wishes.id, site=name, step=step)),
            ]

        options = {"site": site, "kind": kind, "scale": scale}
        return self._solo("kymograph", "layers", more, height, live, questions, options)

    def exponents(
        self,
        site: str,
        kind: str | None = None,
        *,
        step: int | None = None,
        height: int = _CHART,
        live: bool = True,
    ) -> AnyWidget:
        """One tensor at one step by powers of two, against number formats."""
        name, _ = self._site(site, kind)

        def questions(wishes: Wishes) -> list[Question]:
            return [("section", q.SectionQuestion(run=wishes.id, site=name, step=step))]

        options = {"site": site, "kind": kind, "step": step}
        more = {"site": name, "step": step}
        return self._solo("exponents", "layers", more, height, live, questions, options)

    def lines(
        self, name: str | None = None, *, height: int = _LINES, live: bool = True
    ) -> AnyWidget:
        """One scalar over the steps, by default the loss."""

        def questions(wishes: Wishes) -> list[Question]:
            names = () if name is None else (name,)
            return [("lines", q.LinesQuestion(run=wishes.id, name=names, columns=2048))]

        options = {} if name is None else {"name": name}
        return self._solo("lines", "overview", {"line": name}, height, live, questions, options)

    def graph(self, module: str = "", *, height: int = HEIGHT, live: bool = True) -> AnyWidget:
        """The calls in a module and the data between them, coloured by a statistic."""
        node = None if not module else ids.of_name(module)

        def questions(wishes: Wishes) -> list[Question]:
            return [
                ("level", q.LevelQuestion(run=wishes.id, node=node)),
                (
                    "tint",
                    q.TintQuestion(run=wishes.id, node=node, kind=wishes.header.kind, columns=64),
                ),
            ]

        options = {"module": module}
        return self._solo("graph", "explore", {"at": node}, height, live, questions, options)

    def _site(self, site: str, kind: str | None) -> tuple[str, str]:
        """Ids of a tensor and of its module."""
        found = self._run.catalogue().select(site, kind)
        if len(found) != 1:
            names = ", ".join(f"`{one.name}`" for one in found[:4])
            raise SondeError(
                f"`{site}` stands for {len(found)} tensors ({names}, …). Name one, with its kind."
            )
        return ids.of_name(found[0].name), ids.of_name(found[0].module)

    def _solo(
        self,
        name: str,
        page: str,
        state: Mapping[str, object],
        height: int,
        live: bool,
        questions: Callable[[Wishes], list[Question]],
        options: Mapping[str, object],
    ) -> AnyWidget:
        given = {key: value for key, value in state.items() if value is not None}
        query = "".join(f"&{key}={quote(str(value), safe='')}" for key, value in given.items())
        return make(
            self._run,
            lambda run_id: f"#/{page}?run={quote(run_id, safe='')}{query}",
            height=height,
            live=live,
            solo=name,
            questions=questions,
            picture=name,
            options={key: value for key, value in options.items() if value is not None},
        )
