"""A run, opened for reading: by anyone, at any time, while it is written or long after.

    run = sonde.open("runs/latest")
    run.stats("h.*.attn", kind="output", stat=["rms", "max_abs"])

Every call sees what is on disk at that moment. Nothing is ever written, locked or executed.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Self, TypedDict, Unpack, overload

import duckdb
import pyarrow as pa
from numpy.typing import ArrayLike

from sonde._errors import SondeError, SondeWarning
from sonde.graph.model import Graph
from sonde.record import FINAL, Sketches
from sonde.sketch import Exponents, Histogram, Sketch, added, row
from sonde.store import attempts, locations
from sonde.store.attempts import Status
from sonde.store.limits import Limits
from sonde.store.listing import Damage
from sonde.store.reading import frames, graphs, hdf5, stat_queries
from sonde.store.reading import progress as _progress
from sonde.store.reading import traces as _traces
from sonde.store.reading.accessors import Accessors
from sonde.store.reading.catalogue import Catalogue, Kinds
from sonde.store.reading.frames import Frame
from sonde.store.reading.info import RunInfo, describe
from sonde.store.reading.selection import Selection, Steps
from sonde.store.reading.sketch_rows import Key
from sonde.store.remote import mirror
from sonde.store.schemas import GRAPH, SITES, TRACES
from sonde.store.snapshots import Snapshot, SnapshotTaker
from sonde.store.sql.inquiry import Inquiry, careful


def open_run(
    path: str | os.PathLike[str] = "runs/latest",
    *,
    frame: str | None = None,
    locked: bool = False,
    limits: Limits | None = None,
) -> Run:
    """Open a run for reading.

    Args:
        path: The run directory, or its URL; `<folder>/latest` is the newest run in the folder.
        frame: "pandas", "polars" or "arrow": what tables come as. By default pandas if it is
            installed.
        locked: For SQL from someone else: it can read this run and nothing else.
        limits: What a question may use: memory, threads, the size of its answer.

    Raises:
        RunError: There is no run there, or a newer Sonde wrote it.
    """
    added.load()
    return Run(locations.resolve(mirror.local(path)), frame=frame, locked=locked, limits=limits)


class SketchKey(TypedDict, total=False):
    """What tells one sketch of a site and step from another: see `Run.sketch`."""

    call: int | None
    slot: str | None
    phase: str
    rank: int | None
    stage: str


class Run(Accessors):
    """One recorded training. Use `sonde.open` to get one."""

    def __init__(
        self,
        path: str,
        *,
        frame: str | None = None,
        locked: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self._frame = frames.check_kind(frame) or frames.default_kind()
        self._about, self._about_problem = locations.read_about(path)
        run_id = self._about.get("run_id")
        self._taker = SnapshotTaker(path, run_id if isinstance(run_id, str) else None)
        self._is_locked = locked
        self._inquiry = Inquiry(path, self._taker, limits or Limits(), locked=locked)
        self._catalogue: tuple[tuple[str, ...], Catalogue] | None = None
        self._graph: tuple[tuple[str, ...], Graph] | None = None
        self._has_warned = False

    # -- what there is --------------------------------------------------------------------------

    @property
    @careful
    def status(self) -> Status:
        """`live`, `finished`, `failed` (closed after an exception) or `crashed`."""
        return attempts.run_status(self._look().attempts)

    @property
    @careful
    def info(self) -> RunInfo:
        """All that is known about the run: status, steps, versions, configuration, losses."""
        return describe(self, self._look(), self._about)

    @property
    @careful
    def steps(self) -> list[int]:
        """Every step that has a sketch or a number, ascending."""
        found = self._ask(
            "select distinct step from (select step from records where not replaced "
            "union all select step from numbers where not replaced) order by step"
        )
        steps: list[int] = found["step"].to_pylist()
        return steps

    @property
    @careful
    def sites(self) -> Frame:
        """One row per site: `name, module, kind, call, slot, dtype, shape, module_type, stage`,
        `requires_grad` of parameters, `dropout_p` of dropout modules."""
        return self._framed(self._ask("select * from sites"))

    @property
    @careful
    def graph(self) -> Graph:
        """The graph of the model as far as it was seen: `nodes`, `edges`, `level(module)`."""
        paths = tuple(s.path for s in self._look().segments[GRAPH.name])
        if self._graph is None or self._graph[0] != paths:
            self._graph = (paths, graphs.from_rows(self._ask(graphs.ROWS)) if paths else Graph())
        return self._graph[1]

    @property
    @careful
    def progress(self) -> _progress.Progress:
        """How far the run has come, without reading a row."""
        return _progress.of_snapshot(self._look())

    @property
    def damaged(self) -> list[Damage]:
        """Files that cannot be trusted, and segments and traced values that are gone."""
        snapshot = self._look()
        found = list(snapshot.damages)
        if snapshot.segments[TRACES.name]:
            with contextlib.suppress(SondeError):  # rows that cannot be read are named already
                found += _traces.missing_files(self)
        if self._about_problem:
            found.insert(0, Damage(locations.RUN_FILE, self._about_problem))
        return found

    # -- numbers --------------------------------------------------------------------------------

    @careful
    def scalars(
        self,
        name: str | None = None,
        *,
        steps: Steps = None,
        phase: str | None = None,
        rank: int | None = None,
        all_attempts: bool = False,
        missing: str = "error",
        frame: str | None = None,
    ) -> Frame:
        """Logged numbers, one row per step: `step, phase, name, value`.

        `name` is exact, a glob or `re:...`; one that no scalar of the run has is an error, unless
        `missing` is "ok". Of a number that several ranks logged, the lowest rank's counts unless
        `rank` is given. `all_attempts` shows replaced rows too, with the column `attempt`.
        """
        return self._numbers(
            "scalars", name, None, steps, phase, rank, all_attempts, missing, frame
        )

    @careful
    def metrics(
        self,
        name: str | None = None,
        module: str | None = None,
        *,
        steps: Steps = None,
        phase: str | None = None,
        rank: int | None = None,
        all_attempts: bool = False,
        missing: str = "error",
        frame: str | None = None,
    ) -> Frame:
        """Metrics of modules: `step, phase, module, name, value`. Arguments as for `scalars`.

        What follows a `/` in a name stands for it too: `dist` finds `output_difference/dist`.
        """
        return self._numbers(
            "metrics", name, module, steps, phase, rank, all_attempts, missing, frame
        )

    def to_hdf5(self, path: str | os.PathLike[str]) -> int:
        """Write scalars and metrics to an HDF5 file, a group for each; how many there are."""
        return hdf5.write(self, path)

    # -- sketches -------------------------------------------------------------------------------

    @careful
    def stats(
        self,
        site_pattern: str = "*",
        kind: Kinds = None,
        stat: str | Sequence[str] | None = None,
        steps: Steps = None,
        phase: str | None = "train",
        rank: int | None = None,
        *,
        stage: str | None = FINAL,
        all_attempts: bool = False,
        missing: str = "error",
        frame: str | None = None,
    ) -> Frame:
        """Statistics of sites, one row per step and site, ordered by step.

        Columns: `step, phase, module, kind, call, slot, name`, then one per statistic; NaN where
        there is nothing to say.

        Args:
            site_pattern: A glob on the module's path (of parameters: on their full name), or
                `re:...` in the syntax of RE2, which has no lookarounds and no backreferences.
            kind: One kind or several; None for all.
            stat: One name or several of `sonde.sketch.STATISTICS`, or quantiles such as `p99`.
            steps: A step, (first, last) with both included, a range, or a list of steps.
            phase: None for all phases.
            rank: Only this rank; None merges all ranks.
            stage: `before_clip` for gradients before clipping; `final` is as the optimizer used
                them; None for both.
            all_attempts: Show rows that a resumed run has replaced, with the column `attempt`.
            missing: "ok" for an empty answer where the pattern matches no site of the run, which
                is an error otherwise.
            frame: "pandas", "polars" or "arrow".
        """
        table = stat_queries.statistics(
            self,
            catalogue=self.catalogue(),
            pattern=site_pattern,
            kind=kind,
            stat=stat,
            selection=Selection().equal("phase", phase).steps(steps),
            rank=rank,
            all_attempts=all_attempts,
            stage=stage,
            missing=missing,
        )
        return self._framed(table, frame)

    @careful
    def sketch(
        self,
        site: str,
        kind: str | None = None,
        step: int | None = None,
        *,
        call: int | None = None,
        slot: str | None = None,
        phase: str = "train",
        rank: int | None = None,
        stage: str = FINAL,
    ) -> Sketch:
        """The sketch of one site at one step (the last one by default), ranks merged.

        `site` is a printable name (`h.3.attn/output/0`), or a path with `kind` (and `call`,
        `slot`). `stage` as in `stats`.
        """
        found = self.catalogue().resolve(site, kind, call=call, slot=slot, stage=stage)
        return stat_queries.sketch(self, found, step, phase=phase, rank=rank)

    def histogram(
        self,
        site: str,
        kind: str | None = None,
        step: int | None = None,
        edges: ArrayLike | int | None = None,
        **where: Unpack[SketchKey],
    ) -> Histogram:
        """Histogram of a site at a step: `edges`, `counts`, `zeros`, `nans`, `infs`.

        `edges` are rising numbers or how many equal bins to make (50). Further arguments as
        `sketch`.
        """
        return self.sketch(site, kind, step, **where).histogram(50 if edges is None else edges)

    def exponents(
        self,
        site: str,
        kind: str | None = None,
        step: int | None = None,
        **where: Unpack[SketchKey],
    ) -> Exponents:
        """Values by power of two: `exponents`, `counts`. Further arguments as `sketch`."""
        return self.sketch(site, kind, step, **where).exponents()

    @overload
    def merge(
        self,
        site_pattern: str = ...,
        kind: Kinds = ...,
        steps: Steps = ...,
        phase: str | None = ...,
        rank: int | None = ...,
        *,
        by: None = ...,
        missing: str = ...,
        stage: str | None = ...,
    ) -> Sketch: ...

    @overload
    def merge(
        self,
        site_pattern: str = ...,
        kind: Kinds = ...,
        steps: Steps = ...,
        phase: str | None = ...,
        rank: int | None = ...,
        *,
        by: str | Sequence[str],
        missing: str = ...,
        stage: str | None = ...,
    ) -> dict[object, Sketch]: ...

    def merge(
        self,
        site_pattern: str = "*",
        kind: Kinds = None,
        steps: Steps = None,
        phase: str | None = "train",
        rank: int | None = None,
        *,
        by: str | Sequence[str] | None = None,
        stage: str | None = FINAL,
        missing: str = "error",
    ) -> Sketch | dict[object, Sketch]:
        """Everything that matches as one sketch; with `by`, one sketch per step, site, rank, ...

            run.merge("h.*.mlp", kind="output", steps=(100, 200))    # a Sketch
            run.merge("h.*.mlp", kind="output", by="step")           # {step: Sketch}
            run.merge(kind="param_grad", by=("module", "rank"))      # {(module, rank): Sketch}

        `by` takes `step`, `phase`, `name`, `module`, `kind`, `call`, `slot` and `rank`. `stage` and
        `missing` as in `stats`.
        """
        columns = stat_queries.check_by(by)
        chosen = Selection(["not replaced"]).equal("phase", phase).equal("rank", rank).steps(steps)
        stat_queries.of_sites(chosen, self.catalogue(), site_pattern, kind, stage, missing)
        each = rank is not None or "rank" in columns
        keys, merged = self._merge(chosen, columns, "records" if each else "counted")
        if by is None:
            return row(merged, 0) if keys else Sketch.empty()
        plain = [key[0] if isinstance(by, str) else key for key in keys]
        return {key: row(merged, i) for i, key in enumerate(plain)}

    # -- traces ---------------------------------------------------------------------------------

    @property
    @careful
    def traces(self) -> Frame:
        """Traced variables, one row per name: how many values, of which steps and ranks."""
        return self._framed(_traces.listing(self))

    @careful
    def trace(
        self,
        path: str,
        *,
        steps: Steps = None,
        phase: str | None = None,
        rank: int | None = None,
        call: int | None = None,
    ) -> _traces.Traced:
        """Values of a traced variable: `iterations`, `ranks`, `values` and more, in order of steps.

        `path` is a name (`layers.0.attn.forward.q`) or a pattern with `*`. Values are numpy arrays
        and plain Python values, read when they are looked at.
        """
        return _traces.read(self, path, steps=steps, phase=phase, rank=rank, call=call)

    # -- SQL ------------------------------------------------------------------------------------

    def sql(
        self,
        query: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        frame: str | None = None,
    ) -> Frame:
        """Run SQL over `stats`, `bins`, `scalars`, `metrics`, `sites` and `events`.

        The rows as they were written, per rank and attempt, are in `records` and `numbers`. Values
        are best given as `params`: a list for `?`, a dict for `$name`.
        """
        try:
            if self._is_locked and not self._inquiry.is_question(query):
                raise SondeError("Only a single `select` can be run on this run.")
        except duckdb.Error as error:
            raise SondeError(f"The query failed: {error}") from error
        return self._framed(self._ask(query, params), frame)

    # -- ending ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the memory. Nothing is locked; the run can be opened again."""
        self._inquiry.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Run {self.name!r} at {self.path!r}, {self.status}>"

    # -- inside ---------------------------------------------------------------------------------

    @careful
    def catalogue(self) -> Catalogue:
        """The sites, looked up again only when there are new ones."""
        snapshot = self._look()
        paths = tuple(s.path for s in snapshot.segments[SITES.name])
        has_lost = any(d.file.startswith(f"{SITES.live}/") for d in snapshot.damages)
        if self._catalogue is None or self._catalogue[0] != paths or has_lost:
            rows = self._ask("select * from sites")
            found = Catalogue.from_rows(rows)
            if has_lost:
                rest = "select distinct name, module, kind, call, slot from records order by name"
                found = Catalogue(
                    tuple(
                        dict.fromkeys((*found.sites, *Catalogue.from_rows(self._ask(rest)).sites))
                    )
                )
            self._catalogue = (paths, found)
        return self._catalogue[1]

    def examine(self) -> bool:
        """Read every segment in full. Whether any is at fault that was not known to be: it is in
        `damaged` from here on, and no answer counts it."""
        return self._inquiry.examine()

    def _look(self) -> Snapshot:
        """What is on disk now; warns once if some of it is damaged."""
        snapshot = self._inquiry.look()
        bad = len(snapshot.damages) + (self._about_problem is not None)
        if bad and not self._has_warned:
            self._has_warned = True
            first = snapshot.damages[0] if snapshot.damages else None
            what = (
                f"`{first.file}` {first.problem}" if first else f"`{locations.RUN_FILE}` is damaged"
            )
            more = f" ({bad - 1} more in `run.info['damaged']`)" if bad > 1 else ""
            message = f"Part of the run `{self.name}` cannot be read: {what}{more}. The rest is."
            warnings.warn(message, SondeWarning, stacklevel=4)
        return snapshot

    def _ask(
        self, query: str, params: Sequence[object] | Mapping[str, object] | None = None
    ) -> pa.Table:
        """The answer to a query over the views, from one snapshot."""
        try:
            return self._inquiry.ask(query, params, self._look)
        except duckdb.Error as error:
            raise SondeError(f"The query failed: {error}") from error

    @careful
    def _merge(
        self, chosen: Selection, by: Sequence[str], table: str
    ) -> tuple[list[Key], Sketches]:
        return stat_queries.merge(self, chosen, by, table)

    def _framed(self, table: pa.Table, frame: str | None = None) -> Frame:
        return frames.to_frame(table, frames.check_kind(frame) or self._frame)

    def _numbers(
        self,
        view: str,
        name: str | None,
        module: str | None,
        steps: Steps,
        phase: str | None,
        rank: int | None,
        all_attempts: bool,
        missing: str,
        frame: str | None,
    ) -> Frame:
        chosen = Selection().equal("phase", phase).steps(steps)
        wanted = {"name": name} if view == "scalars" else {"name": name, "module": module}
        stat_queries.of_numbers(self, chosen, view, wanted, missing)
        table = stat_queries.numbers(self, view, chosen, rank=rank, all_attempts=all_attempts)
        return self._framed(table, frame)
