"""Single views of a run in a notebook: `run.view.heatmap("output")`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from sonde._errors import SondeError
from sonde.notebook.showing import HEIGHT, make
from sonde.plot.accessor import RunPlots
from sonde.present.archive import Question
from sonde.present.report.wishes import Wishes
from sonde.store.reading.run import Run, open_run
from sonde.views import ids
from sonde.views import questions as q
from sonde.views.specs import Measure

if TYPE_CHECKING:
    from anywidget import AnyWidget
    from matplotlib.figure import Figure

FORMAT: Final = "float8_e4m3fn"
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
        axis: str | None = None,
        height: int = HEIGHT,
        live: bool = True,
    ) -> AnyWidget:
        """One statistic of all tensors of a kind, or one metric of all modules, over the steps.

        `axis` is "time" or a logged scalar such as "epoch", in place of steps.
        """
        below = None if under is None else ids.of_name(under)
        self._run.catalogue().kinds(kind)  # an unknown kind is an error with those there are
        more = {"kind": kind, "stat": stat, "metric": metric, "under": below, "step": step}
        options = {"metric": metric, "under": under, "axis": axis}

        def questions(wishes: Wishes) -> list[Question]:
            asked = q.HeatQuestion(
                run=wishes.id,
                kind=None if metric else kind or wishes.header.kind,
                stat=stat,
                metric=metric,
                under=below,
                columns=1024,
            )
            return [("heat", asked), *_clock(wishes, axis)]

        return self._solo(
            "heatmap",
            "layers",
            {**more, "axis": axis},
            questions,
            lambda plots: plots.heatmap(kind, stat, **options),
            height=height,
            live=live,
        )

    def kymograph(
        self,
        site: str,
        kind: str | None = None,
        *,
        step: int | None = None,
        axis: str | None = None,
        scale: str = "auto",
        height: int = HEIGHT,
        live: bool = True,
    ) -> AnyWidget:
        """How the values of one tensor are spread, over the steps and at the cursor."""
        name, module = self._site(site, kind)
        more = {"site": name, "under": module, "step": step, "axis": axis, "scale": scale}

        def questions(wishes: Wishes) -> list[Question]:
            over_time = q.KymographQuestion(run=wishes.id, site=name, scale=scale)  # type: ignore[arg-type]  # checked by the view
            return [
                ("panel", q.PanelQuestion(run=wishes.id, module=module)),
                ("kymograph", over_time),
                ("section", q.SectionQuestion(run=wishes.id, site=name, step=step)),
                *_clock(wishes, axis),
            ]

        return self._solo(
            "kymograph",
            "layers",
            more,
            questions,
            lambda plots: plots.kymograph(site, kind, axis=axis, scale=scale),
            height=height,
            live=live,
        )

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

        return self._solo(
            "exponents",
            "layers",
            {"site": name, "step": step},
            questions,
            lambda plots: plots.exponents(site, kind, step),
            height=height,
            live=live,
        )

    def lines(
        self,
        name: str | None = None,
        *,
        axis: str | None = None,
        height: int = _LINES,
        live: bool = True,
    ) -> AnyWidget:
        """One scalar over the steps, or over `axis`; by default the loss."""

        def questions(wishes: Wishes) -> list[Question]:
            names = () if name is None else (name,)
            asked = q.LinesQuestion(run=wishes.id, name=names, columns=2048)
            return [("lines", asked), *_clock(wishes, axis)]

        return self._solo(
            "lines",
            "overview",
            {"line": name, "axis": axis},
            questions,
            lambda plots: plots.lines(name or "loss", axis=axis),
            height=height,
            live=live,
        )

    def table(
        self,
        kind: str | None = None,
        *,
        under: str | None = None,
        step: int | None = None,
        format: str = FORMAT,
        height: int = HEIGHT,
        live: bool = True,
    ) -> AnyWidget:
        """All tensors of a kind at a step, with what a number format would lose of each."""
        below = None if under is None else ids.of_name(under)
        self._run.catalogue().kinds(kind)
        more = {"kind": kind, "under": below, "step": step, "fmt": format}

        def questions(wishes: Wishes) -> list[Question]:
            asked = q.TableQuestion(
                run=wishes.id,
                kind=kind or wishes.header.kind,
                under=below,
                step=step,
                format=format,
            )
            return [("table", asked)]

        return self._solo(
            "table",
            "layers",
            more,
            questions,
            lambda plots: plots.heatmap(kind, under=under),
            height=height,
            live=live,
        )

    def variable(
        self, site: str, *, step: int | None = None, height: int = HEIGHT, live: bool = True
    ) -> AnyWidget:
        """What a traced variable held at a step, and the line that gave it."""
        name, module = self._site(site, "local")

        def questions(wishes: Wishes) -> list[Question]:
            return [
                ("panel", q.PanelQuestion(run=wishes.id, module=module)),
                ("variable", q.VariableQuestion(run=wishes.id, site=name, step=step)),
            ]

        return self._solo(
            "variable",
            "layers",
            {"site": name, "under": module, "step": step},
            questions,
            lambda plots: plots.heatmap(),
            height=height,
            live=live,
        )

    def compare(
        self,
        *others: Run | str | os.PathLike[str],
        kind: str | None = None,
        stat: str = "rms",
        measure: Measure = "ratio",
        site: str | None = None,
        step: int | None = None,
        height: int = HEIGHT,
        live: bool = True,
    ) -> AnyWidget:
        """This run beside others: what differs, heatmaps, and with `site` both histograms."""
        name = None if site is None else self._site(site, kind)[0]
        more = {"kind": kind, "stat": stat, "by": measure, "site": name, "step": step}

        def questions(wishes: Wishes) -> list[Question]:
            found = wishes.pairs.first(kind, stat, measure)
            return found if name is None else [*found, *wishes.pairs.histograms(name, step)]

        return self._solo(
            "compare",
            "compare",
            more,
            questions,
            lambda plots: plots.compare(*others, kind=kind, stat=stat, measure=measure),
            others=[one if isinstance(one, Run) else open_run(one) for one in others],
            height=height,
            live=live,
        )

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

        return self._solo(
            "graph",
            "explore",
            {"at": node},
            questions,
            lambda plots: plots.graph(module),
            height=height,
            live=live,
        )

    def _site(self, site: str, kind: str | None) -> tuple[str, str]:
        """Ids of a tensor, given by its name or by a pattern, and of its module."""
        catalogue = self._run.catalogue()
        found = [one for one in catalogue.sites if one.name == site]
        found = found or catalogue.select(site, kind)
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
        questions: Callable[[Wishes], list[Question]],
        picture: Callable[[RunPlots], Figure],
        *,
        height: int,
        live: bool,
        others: Sequence[Run] = (),
    ) -> AnyWidget:
        given = {key: value for key, value in state.items() if value is not None}
        query = "".join(f"&{key}={quote(str(value), safe='')}" for key, value in given.items())
        return make(
            self._run,
            lambda run_ids: f"#/{page}?run={run_ids}{query}",
            others=others,
            height=height,
            live=live,
            solo=name,
            questions=questions,
            picture=picture,
        )


def _clock(wishes: Wishes, axis: str | None) -> list[Question]:
    return [] if axis is None else [("clock", q.ClockQuestion(run=wishes.id, name=axis))]
