"""TensorBoard: scalars, histograms and the graph of the model, in event files.

A scalar of an event file is a float32, so numbers come back rounded to it, and what is beyond its
range as an infinity.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from sonde._require import require
from sonde.graph.model import Graph
from sonde.record import GraphPart
from sonde.sinks.graphdef import leaves
from sonde.sinks.sink import Reading, Sink, SinkOptions, WatchedRun
from sonde.sketch import Histogram, Sketch

_FILES = "*tfevents*"


class SummaryWriter(Protocol):
    """What is used of a `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...

    def add_histogram_raw(
        self,
        tag: str,
        *,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: list[float],
        bucket_counts: list[float],
        global_step: int,
    ) -> object: ...

    def flush(self) -> object: ...


class TensorBoard(Sink):
    """Writes to a log directory, or to a `SummaryWriter` of yours, which you close.

    Without either, the event files lie in the run, as `tensorboard`: `tensorboard --logdir runs`
    finds them. The graph of the model goes to event files only.
    """

    def __init__(
        self,
        to: str | os.PathLike[str] | SummaryWriter | None = None,
        **options: Unpack[SinkOptions],
    ) -> None:
        super().__init__(**options)
        self._to = to
        self._parts: list[GraphPart] = []
        self._drawn: tuple[int, int] = (0, 0)
        self._target: _Events | _Writer | None = None
        if to is None or isinstance(to, str | os.PathLike):
            require("tensorboard", extra="tensorboard")

    def start(self, run: WatchedRun) -> None:
        if self._to is None or isinstance(self._to, str | os.PathLike):
            is_own = self._to is None
            self._target = _Events(Path(self._to or run.path / "tensorboard"), is_own=is_own)
        else:
            self._target = _Writer(self._to)

    def write(self, readings: Sequence[Reading]) -> None:
        assert self._target is not None
        for reading in readings:
            self._target.add(reading)
        self._draw()
        self._target.flush()

    def graph(self, part: GraphPart) -> None:
        self._parts.append(part)

    def close(self, reason: str) -> None:
        if self._target is not None:
            self._draw()
            self._target.close()

    def _draw(self) -> None:
        """Write the graph, if it has grown since it was written."""
        if not self._parts or not isinstance(self._target, _Events):
            return
        found = Graph.of(self._parts)
        size = (len(found.nodes), len(found.edges))
        if size != self._drawn:
            self._target.draw(found)
            self._drawn = size


class _Events:
    """An event file of our own. One event holds all numbers of a reading."""

    def __init__(self, logdir: Path, *, is_own: bool) -> None:
        from tensorboard.compat.proto import event_pb2, graph_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = event_pb2
        self._summary = summary_pb2
        self._graph = graph_pb2
        self._is_continued = is_own and any(logdir.glob(_FILES))
        self._file = EventFileWriter(os.fspath(logdir), max_queue_size=1000)

    def add(self, reading: Reading) -> None:
        if self._is_continued:  # a resumed run: readers drop what the file before has from here on
            started = self._event.SessionLog(status=self._event.SessionLog.START)
            self._put(step=reading.step, session_log=started)
            self._is_continued = False
        value = self._summary.Summary.Value
        values = [value(tag=k, simple_value=number) for k, number in reading.numbers.items()]
        for key, histogram in reading.histograms.items():
            found = _buckets(reading.sketches[key], histogram)
            if found is not None:
                rest: dict[str, object] = {**found}
                limits, counts = rest.pop("bucket_limits"), rest.pop("bucket_counts")
                proto = self._summary.HistogramProto(bucket_limit=limits, bucket=counts, **rest)
                values.append(value(tag=key, histo=proto))
        self._put(step=reading.step, summary=self._summary.Summary(value=values))

    def draw(self, graph: Graph) -> None:
        found = self._graph.GraphDef()
        found.versions.producer = 22
        for leaf in leaves(graph):
            node = found.node.add(name=leaf.name, op=leaf.op)
            node.input.extend(leaf.inputs)
            shapes = node.attr["_output_shapes"].list.shape
            for shape in leaf.shapes:
                dims = shapes.add().dim
                for size in shape:
                    dims.add(size=size)
        self._put(graph_def=found.SerializeToString())

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _put(self, **what: object) -> None:
        self._file.add_event(self._event.Event(wall_time=time.time(), **what))


class _Writer:
    """A `SummaryWriter` of the user's."""

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def add(self, reading: Reading) -> None:
        for key, number in reading.numbers.items():
            self._writer.add_scalar(key, number, reading.step)
        for key, histogram in reading.histograms.items():
            found = _buckets(reading.sketches[key], histogram)
            if found is not None:
                self._writer.add_histogram_raw(key, **found, global_step=reading.step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.flush()


class _Buckets(TypedDict):
    min: float
    max: float
    num: int
    sum: float
    sum_squares: float
    bucket_limits: list[float]
    bucket_counts: list[float]


def _buckets(sketch: Sketch, histogram: Histogram) -> _Buckets | None:
    """The fields of a histogram; None where no value is finite. Sums and extrema are exact."""
    if sketch.finite == 0:
        return None
    return {
        "min": sketch.min,
        "max": sketch.max,
        "num": sketch.finite,
        "sum": sketch.sum,
        "sum_squares": sketch.sum_sq,
        "bucket_limits": histogram.edges[1:].tolist(),
        "bucket_counts": histogram.counts.tolist(),
    }
