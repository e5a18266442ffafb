"""A soak: trainings that are watched, traced, viewed and compacted at once, killed and resumed.

    python benchmarks/soak.py --minutes 10

Two trainings run: `steady` to the end, and `killed`, which is ended by `kill -9` or Ctrl-C at
random instants and resumed. A server shows both to pages that ask all the time. Every number
follows from its step, so each that is lost, wrong or there twice is found. The report says how
memory, descriptors, threads and files went; the exit status is 1 if a number was lost or wrong, or
if any of them grew.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import psutil
import pyarrow as pa

import sonde
from soak_training import N, value
from sonde.store.reading.run import open_run
from sonde.views import ids

HERE: Final = Path(__file__).parent
FLUSH_S: Final = 2.0
EXIT_S: Final = 120.0
LAYERS: Final = 4
VIEWS: Final = ("run", "tree", "level", "lines", "heat", "tint", "movers", "spark")

ENOUGH: Final = 60
"""Samples that say whether something grows; fewer show how it starts."""

# What may grow: caches fill, segments wait for their block of 64, one file in 64 stays. A leak has
# no such end. Files of traced arrays are never merged: one for each flush, and no more.
ALLOWED: Final = {
    "memory_mb": lambda early: early * 1.15 + 32,
    "descriptors": lambda early: early + 8,
    "threads": lambda early: early + 4,
    "segments": lambda early: early * 1.25 + 48,
    "segments_per_life": lambda early: early * 1.25 + 4,
    "arrays_per_flush": lambda _early: 1.0,
}


@dataclass
class Training:
    """A child process and what it said."""

    folder: Path
    name: str
    rate: float
    lives: int = 0
    flushes: int = 0
    began_s: float = field(default_factory=time.monotonic)
    promised: int = -1
    excused: set[int] = field(default_factory=set)
    history: list[tuple[str, int, int]] = field(default_factory=list)
    lost: int = 0
    hung: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    lines: list[list[str]] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    _reader: threading.Thread | None = None

    def start(self) -> None:
        how = "resume" if self.lives else "new"
        script = str(HERE / "soak_training.py")
        command = [sys.executable, script, str(self.folder), self.name, how, str(self.rate)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder
        )
        self.lives += 1
        self.lines = []
        self._reader = threading.Thread(target=self._read, args=(self.process,))
        self._reader.start()
        self._errors: list[bytes] = []
        threading.Thread(target=self._complain, args=(self.process,), daemon=True).start()

    def wait_for_step(self, ended: threading.Event) -> bool:
        """Whether a step was made: False if the process ended before it."""
        while not any(line[0] == "s" for line in self.lines[:2]):
            if self.process.poll() is not None:
                return False
            ended.wait(0.05)
        return True

    def end(self, how: int) -> None:
        """End it and count what it had promised to keep and did not."""
        when = time.monotonic_ns()
        self.process.send_signal(how)
        try:
            code = self.process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self.hung += 1
            self.process.kill()
            code = self.process.wait()
        self._reader.join()
        self.ends[f"{signal.Signals(how).name} → {code}"] += 1
        steps = [(int(line[1]), int(line[2])) for line in self.lines if line[0] == "s"]
        kept = [int(line[1]) for line in self.lines if line[0] == "f"]
        self.flushes += len(kept)
        # A process that is told to end keeps all; a killed one all that is older than a flush.
        limit = when - 1.5 * FLUSH_S * 1e9 if how == signal.SIGKILL else float("inf")
        kept += [step for step, ns in steps if ns < limit]
        self.promised = max(kept, default=self.promised)
        with open_run(self.folder / self.name, frame="arrow") as run:
            found = run.steps
        last = found[-1] if found else -1
        self.lost += max(self.promised - last, 0)
        self.history.append((signal.Signals(how).name, self.promised, last))
        # Of the steps of the last flush interval some tables may be there and others not.
        self.excused.update(range(self.promised + 1, last + 1))

    @property
    def most_flushes(self) -> float:
        """How often it can have flushed: when asked, by its clock, and at the end of each life."""
        now = sum(line[0] == "f" for line in self.lines)
        by_clock = (time.monotonic() - self.began_s) / FLUSH_S
        return self.flushes + now + by_clock + 2 * self.lives

    def said(self) -> str:
        return b"".join(self._errors).decode("utf-8", "replace")

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stdout:
            self.lines.append(line.decode().split())

    def _complain(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stderr:
            self._errors.append(line)


class Viewer(threading.Thread):
    """A page that asks everything of every run, again and again."""

    def __init__(self, address: str, ended: threading.Event) -> None:
        super().__init__(name="viewer")
        self.answers: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._address = address
        self._ended = ended

    def run(self) -> None:
        with httpx.Client(base_url=self._address, timeout=120, trust_env=False) as client:
            while not self._ended.is_set():
                try:
                    self._round(client)
                except httpx.HTTPError as error:
                    self.answers[type(error).__name__] += 1
                self._ended.wait(0.2)

    def _round(self, client: httpx.Client) -> None:
        rows = client.get("api/runs").json()["spec"]["runs"]
        names = [row["id"] for row in rows]
        client.get("api/state", params={"run": names})
        for run in names:
            for view in VIEWS:
                if self._ended.is_set():
                    return
                began = time.monotonic()
                found = client.get(f"api/{view}", params={"run": run})
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.answers[str(found.status_code)] += 1
            for view in ("kymograph", "section"):
                site = ids.of_name("layers.0/output/0")
                found = client.get(f"api/{view}", params={"run": run, "site": site})
                self.answers[str(found.status_code)] += 1


class Samples:
    """Memory, descriptors, threads and files over time, by who holds them."""

    def __init__(self) -> None:
        self.taken: dict[tuple[str, str], list[float]] = {}

    def take(self, who: str, process: psutil.Process) -> None:
        try:
            with process.oneshot():
                self._add(who, "memory_mb", process.memory_info().rss / 1e6)
                self._add(who, "descriptors", process.num_fds())
                self._add(who, "threads", process.num_threads())
        except psutil.Error:
            pass

    def take_files(self, training: Training) -> None:
        """A training that is killed and resumed leaves files of each life: those are compared."""
        folder = training.folder / training.name
        arrays = sum(len(names) for _, _, names in os.walk(folder / "tensors"))
        segments = sum(len(names) for _, _, names in os.walk(folder)) - arrays
        if training.lives > 1:
            self._add(training.name, "segments_per_life", segments / training.lives)
        else:
            self._add(training.name, "segments", segments)
        self._add(training.name, "arrays_per_flush", arrays / training.most_flushes)

    def _add(self, who: str, what: str, number: float) -> None:
        self.taken.setdefault((who, what), []).append(number)

    def rows(self) -> list[tuple[str, str, float, float, float, bool]]:
        """Who, what, level of the second and the last quarter, highest, and whether it is flat."""
        found = []
        for (who, what), numbers in sorted(self.taken.items()):
            quarter = max(len(numbers) // 4, 1)
            early = statistics.median(numbers[quarter : 2 * quarter] or numbers)
            late = statistics.median(numbers[-quarter:])
            is_flat = len(numbers) < ENOUGH or late <= ALLOWED[what](early)
            found.append((who, what, early, late, max(numbers), is_flat))
        return found


def check(folder: Path, name: str, excused: set[int]) -> dict[str, int]:
    """Count what is missing, wrong or there twice. Steps just before a kill may lack something."""
    found = {"steps": 0, "missing": 0, "wrong": 0, "twice": 0, "damaged": 0}
    expected = "(1 + (step % 97) / 8.0)"
    with open_run(folder / name, frame="arrow") as run:
        found["damaged"] = len(run.damaged)
        tables = {f"layers.{i}/output/0": f"sum = {N} * {expected}" for i in range(LAYERS)}
        for site, is_right in tables.items():
            query = "select step, {} as is_right from stats where name = '{}'"
            _count(found, site, run.sql(query.format(is_right, site)), excused)
        query = f"select step, value = {expected} as is_right from scalars where name = 'loss'"
        _count(found, "loss", run.sql(query), excused)
        traced = run.trace("layers.0.forward.kept")
        steps = traced.iterations
        _count_steps(found, "the trace", steps, excused)
        for i in random.Random(0).sample(range(len(steps)), min(len(steps), 500)):
            found["wrong"] += not (traced.values[i] == 2 * value(steps[i])).all()
    return found


def _count(found: dict[str, int], what: str, rows: pa.Table, excused: set[int]) -> None:
    _count_steps(found, what, rows["step"].to_pylist(), excused)
    found["wrong"] += rows["is_right"].to_pylist().count(False)


def _count_steps(found: dict[str, int], what: str, steps: list[int], excused: set[int]) -> None:
    there = set(steps)
    found["steps"] = max(found["steps"], len(there))
    found["twice"] += len(steps) - len(there)
    missing = set(range(max(there) + 1)) - there - excused
    found["missing"] += len(missing)
    if missing:
        print(f"{what} lacks steps {sorted(missing)[:20]}", file=sys.stderr)


def soak(folder: Path, minutes: float, seed: int, sample_s: float) -> tuple[list[list], bool]:
    """Run it; returns the rows of the report and whether all of it is well."""
    chance = random.Random(seed)
    ended = threading.Event()
    samples = Samples()
    steady, killed = Training(folder, "steady", 60), Training(folder, "killed", 100)
    server, address = _serve(folder)
    viewer = Viewer(address, ended)
    compactor = threading.Thread(target=_compact, args=(folder / "killed", ended))
    try:
        steady.start()
        killed.start()
        for training in (steady, killed):
            assert training.wait_for_step(ended), training.said()
        viewer.start()
        compactor.start()
        ends_s = time.monotonic() + 60 * minutes
        next_end_s = time.monotonic() + chance.uniform(0.5, 12)
        while time.monotonic() < ends_s:
            time.sleep(sample_s)
            samples.take("training", psutil.Process(steady.process.pid))
            samples.take("server", psutil.Process(server.pid))
            for i, worker in enumerate(psutil.Process(server.pid).children()):
                samples.take(f"worker {i}", worker)
            for training in (steady, killed):
                samples.take_files(training)
            if time.monotonic() > next_end_s:
                killed.end(chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT)))
                killed.start()
                assert killed.wait_for_step(ended), killed.said()
                next_end_s = time.monotonic() + chance.uniform(0, 12)
        for training in (steady, killed):
            training.end(signal.SIGTERM)
    finally:
        ended.set()
        for thread in (viewer, compactor):
            if thread.ident is not None:
                thread.join()
        for training in (steady, killed):
            if training.process is not None and training.process.poll() is None:
                training.process.kill()
        server.terminate()
        server.communicate()
    return _report(folder, steady, killed, viewer, samples)


def _serve(folder: Path) -> tuple[subprocess.Popen[str], str]:
    options = ("--no-browser", "--no-token", "--port", "0")
    server = subprocess.Popen(
        [sys.executable, "-m", "sonde", "view", str(folder), *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    for line in server.stdout:
        found = re.search(r"http://\S+", line)
        if found:
            return server, found[0]
    raise RuntimeError(f"the server ended with {server.wait()}")


def _compact(run: Path, ended: threading.Event) -> None:
    """A second compactor, beside the one that each training starts."""
    while not ended.wait(5):
        command = [sys.executable, "-m", "sonde", "compact", str(run)]
        subprocess.run(command, check=False, capture_output=True)


def _report(
    folder: Path, steady: Training, killed: Training, viewer: Viewer, samples: Samples
) -> tuple[list[list], bool]:
    rows: list[list] = []
    for training in (steady, killed):
        found = check(folder, training.name, training.excused)
        if found["missing"]:
            print(f"ends, promised and last steps: {training.history}", file=sys.stderr)
        bad = {k: found[k] for k in ("missing", "wrong", "twice", "damaged")}
        bad |= {"lost": training.lost, "hung": training.hung}
        rows.append([training.name, "steps", "", found["steps"], "", True])
        rows.append([training.name, "lives", "", training.lives, "", True])
        for how, n in sorted(training.ends.items()):
            rows.append([training.name, how, "", n, "", "→ 0" not in how or "TERM" in how])
        rows += [[training.name, what, "", n, "", n == 0] for what, n in bad.items()]
    for status, n in sorted(viewer.answers.items()):
        rows.append(["viewer", f"answers {status}", "", n, "", status in {"200", "404"}])
    rows.append(["viewer", "slowest_s", "", round(viewer.slowest_s, 2), "", True])
    for who, what, early, late, highest, is_flat in samples.rows():
        rows.append([who, what, round(early, 1), round(late, 1), round(highest, 1), is_flat])
    return rows, all(row[-1] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--sample-s", type=float, default=2.0)
    parser.add_argument("--out", type=Path, help="a CSV file for the report")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    # A shell starts background jobs without Ctrl-C, and so would they start the trainings.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="sonde-soak-") as folder:
        rows, is_well = soak(Path(folder), arguments.minutes, arguments.seed, arguments.sample_s)
    print(f"{'':10} {'':24} {'early':>9} {'late':>9} {'highest':>9}")
    for who, what, early, late, highest, is_fine in rows:
        mark = "" if is_fine else "  <-- not well"
        print(f"{who:10} {what:24} {early:>9} {late:>9} {highest:>9}{mark}")
    print(f"{'All is well' if is_well else 'NOT WELL'} (seed {arguments.seed}).")
    if arguments.out:
        _save(arguments.out, rows, arguments)
    return 0 if is_well else 1


def _save(path: Path, rows: list[list], arguments: argparse.Namespace) -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    about = [arguments.minutes, machine, time.strftime("%Y-%m-%d"), sonde.__version__]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        what = ("who", "what", "early", "late", "highest", "is_well")
        writer.writerow([*what, "minutes", "machine", "date", "version"])
        writer.writerows([*row, *about] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
