"""An inquiry: queries over the views of one run, each answered from what is on disk at that moment.

A query that fails because of a file is asked again without that file, which is then named as
damaged: see `sonde.store.sql.examination`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import duckdb
import pyarrow as pa

from sonde._errors import RunError, SondeError
from sonde.sketch import STATISTICS, Statistic
from sonde.store.limits import Limits
from sonde.store.segments import Segment
from sonde.store.snapshots import Snapshot, SnapshotTaker
from sonde.store.sql import counting, examination, queries

Parameters = Sequence[object] | Mapping[str, object] | None

P = ParamSpec("P")
T = TypeVar("T")

_RETRIES: Final = 20
_GONE_FILES: Final = 256

_OF_THE_QUERY: Final = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.InterruptException,
    duckdb.NotImplementedException,
    duckdb.OutOfRangeException,
    duckdb.ParserException,
    duckdb.PermissionException,
    duckdb.SyntaxException,
    duckdb.TypeMismatchException,
)
"""Errors of the query itself, unless they name a file."""

_FILE: Final = ".parquet"

_ODD: Final = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    RunError,
    TypeError,
    ValueError,
    pa.ArrowException,
)
"""What code that trusts its rows raises where they cannot be."""


class Examined(Protocol):
    """Something whose files can be examined."""

    def examine(self) -> bool: ...


E = TypeVar("E", bound=Examined)


def careful(answer: Callable[Concatenate[E, P], T]) -> Callable[Concatenate[E, P], T]:
    """An answer that is given again without the files that made it fail, if there are any."""

    @wraps(answer)
    def asked(run: E, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return answer(run, *args, **options)
        except _ODD:
            if not run.examine():
                raise
        return answer(run, *args, **options)

    return asked


class Inquiry:
    """The queries of one opened run. Any thread may ask."""

    def __init__(self, path: str, taker: SnapshotTaker, limits: Limits, *, locked: bool) -> None:
        self._path = path
        self._taker = taker
        self._limits = limits
        self._is_locked = locked
        self._connection: queries.Connection | None = None
        self._snapshot: Snapshot | None = None
        self._statistics: tuple[Statistic, ...] = ()
        self._examined: set[str] = set()
        self._named: set[str] = set()
        self._lock = threading.RLock()

    def look(self) -> Snapshot:
        """What is on disk now."""
        with self._lock:
            return self._taker.take()

    def ask(self, query: str, params: Parameters, look: Callable[[], Snapshot]) -> pa.Table:
        """The answer to a query over the views, from one snapshot.

        Raises duckdb.Error if the query is at fault, SondeError if the answer is too large.
        """
        for _ in range(_RETRIES):
            snapshot = look()
            try:
                with self._lock:
                    cursor = self._ready(snapshot)
                try:
                    relation = cursor.sql(query, params=params or None)
                    if relation is None:
                        return pa.table({})
                    return queries.to_arrow(relation, self._limits.answer_bytes)
                finally:
                    with contextlib.suppress(duckdb.Error):  # of a connection that has failed
                        cursor.close()
            except (duckdb.Error, pa.ArrowException, queries.TooMuchError) as error:
                if isinstance(error, _OF_THE_QUERY) and _FILE not in str(error):
                    raise
                seen = (snapshot, self._snapshot)  # views of another thread count too
                if any(s.has_vanished for s in seen if s is not None):
                    continue  # compacted away since we looked
                self._let_go_if_dead(error)
                if not self.examine():
                    raise
        raise RunError(
            f"The files of `{self._path}` disappear while they are read. Is the run being deleted?"
        )

    def is_question(self, query: str) -> bool:
        """Whether the text is one statement that only reads."""
        with self._lock:
            return queries.is_question(self._connect(), query)

    def examine(self) -> bool:
        """Read every segment in full that was not examined before. Whether any is at fault; those
        are damaged from here on."""
        with self._lock:
            found = False
            for segment in [s for table in self.look().segments.values() for s in table]:
                if segment.path in self._examined:
                    continue
                problem = self._problem(segment)
                if problem is None:
                    self._examined.add(segment.path)
                else:
                    self._taker.condemn(segment.path, problem)
                    found = True
            return found

    def close(self) -> None:
        """Let go of the memory that is held. The next query opens a connection again."""
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(duckdb.Error):  # of a connection that has failed
                    self._connection.close()
            self._connection = None
            self._snapshot = None

    def _problem(self, segment: Segment) -> str | None:
        try:
            cursor = self._connect().cursor()
        except duckdb.Error:
            self.close()
            cursor = self._connect().cursor()
        try:
            return examination.problem_of(segment, cursor)
        finally:
            with contextlib.suppress(duckdb.Error):  # of a connection that has failed
                cursor.close()

    def _let_go_if_dead(self, error: Exception) -> None:
        """An internal error makes DuckDB refuse everything from then on."""
        if isinstance(error, duckdb.FatalException | duckdb.InternalException):
            self.close()

    def _ready(self, snapshot: Snapshot) -> queries.Connection:
        """A cursor whose views point at the segments of the snapshot, or of a later one."""
        known = tuple(STATISTICS.values())
        if self._snapshot is None or _differ(self._snapshot, snapshot) or known != self._statistics:
            self._snapshot = None
            paths = snapshot.paths()
            self._named.update(paths)
            if len(self._named) > 2 * len(paths) + _GONE_FILES:
                # DuckDB never forgets a file, though a live run is compacted all the time. Cursors
                # of other threads keep the old connection alive for as long as they need it.
                self._connection = None
            try:
                queries.make_views(self._connect(), snapshot)
            except _OF_THE_QUERY as error:  # the views are ours: a file is at fault
                if not snapshot.has_vanished and not self.examine():
                    raise SondeError(f"The run cannot be read: {error}") from error
                return self._ready(self.look())
            self._named.update(paths)
            self._snapshot, self._statistics = snapshot, known
        return self._connect().cursor()

    def _connect(self) -> queries.Connection:
        if self._connection is None:
            self._connection = queries.connect(
                self._path, limits=self._limits, locked=self._is_locked
            )
            self._snapshot = None
            self._named = set()
        return self._connection


def _differ(a: Snapshot, b: Snapshot) -> bool:
    """Whether views for one would be wrong for the other."""
    return a.segments != b.segments or counting.replaced_from(a) != counting.replaced_from(b)
