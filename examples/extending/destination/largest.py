"""A view: the tensors of the last recorded step, largest first. Lies in `src/sonde/views`."""

from dataclasses import dataclass

from sonde.views.questions import RunQuestion
from sonde.views.runs.opened_run import OpenedRun


@dataclass(frozen=True, slots=True)
class LargestRow:
    name: str
    kind: str
    max_abs: float


@dataclass(frozen=True, slots=True)
class Largest:
    step: int | None
    rows: tuple[LargestRow, ...]


def answer(subject: OpenedRun, _question: RunQuestion) -> Largest:
    step = subject.run.steps[-1] if subject.run.steps else None
    query = "select name, kind, max_abs from stats where step = ? and max_abs is not null"
    found = subject.ask(f"{query} order by max_abs desc limit 20", [step]).to_pylist()
    return Largest(step, tuple(LargestRow(**row) for row in found))
