"""What keeping and reading a run costs: `python benchmarks/store.py [--records 1000000]`.

500 sites of realistic sketches (log-normal scales that drift, Poisson-like counts, some 110
occupied bins) over as many steps as it takes, flushed every ten steps. Writes `results/store.csv`:
one line per figure, with machine, date and version. Queries are warm: the best of five.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sonde._version import VERSION
from sonde.record import NumberBatch, Site, SiteInfo, SketchBatch, Sketches
from sonde.sketch.bins import EDGES, HALF, INF_BIN
from sonde.store import Run, Writer, open_run
from sonde.store.writing.compaction import compact

SITES = 500
STEPS_PER_FLUSH = 10
SCALES = 8


class Source:
    """Sketches that look like those of a model: the same site, a little different each step."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.sizes = (10 ** self.rng.uniform(2.8, 6.5, SITES)).astype(np.int64)
        self.scales = 10 ** self.rng.uniform(-4, 1, SITES)
        erf = np.vectorize(math.erf)
        drift = 2 ** (np.arange(SCALES) / SCALES)
        shape = np.diff(erf(np.minimum(EDGES[None] / drift[:, None], 40)))
        self.templates = []
        for k in range(SCALES):
            ids, expected = [], []
            for site in range(SITES):
                shift = 4 * round(math.log2(self.scales[site]))
                share = np.roll(shape[k], shift) * self.sizes[site] / 2
                full = np.concatenate([share, np.zeros(HALF - INF_BIN), share])
                if site % 5 == 0:  # a rectified activation: half of it zeros
                    full[HALF:] = 0
                    full[0] += self.sizes[site] / 2
                held = np.flatnonzero(full > 0.05)
                ids.append(held.astype(np.int16))
                expected.append(full[held])
            lengths = np.array([len(i) for i in ids])
            self.templates.append((np.concatenate(ids), np.concatenate(expected), lengths))

    def batch(self, step: int) -> SketchBatch:
        ids, expected, lengths = self.templates[(step // 7) % SCALES]
        noisy = expected + np.sqrt(expected) * self.rng.standard_normal(len(expected))
        counts = np.maximum(np.round(noisy), 1).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        totals = np.zeros((SITES, 6), np.int64)
        totals[:, 0] = np.add.reduceat(counts, offsets[:-1])
        totals[::5, 1] = totals[::5, 0] // 2
        sums = self.rng.lognormal(0, 1, (SITES, 4)) * totals[:, :1] * self.scales[:, None]
        extrema = self.rng.lognormal(0, 1, (SITES, 3)) * self.scales[:, None]
        extrema[:, 0] *= -1
        sketches = Sketches(totals, sums, extrema, offsets, ids, counts)
        return SketchBatch(step, "train", np.arange(SITES, dtype=np.int32), sketches)


def sites() -> list[SiteInfo]:
    kinds = ("output", "output_grad", "param", "param_grad", "update")
    found = []
    for i in range(SITES):
        module = f"transformer.h.{i // 40}.block.{(i // 5) % 8}"
        site = Site(module, kinds[i % 5], 0, "weight" if i % 5 > 1 else "0")
        found.append(SiteInfo(i, site, "torch.bfloat16", (8, 1024, 768), "Linear"))
    return found


def write(path: str, source: Source, steps: int) -> dict[str, float]:
    writer = Writer(path, compact=False, flush_s=60)
    writer.sites(sites())
    writer.flush()
    hand_over, flushing, cpu = [], 0.0, 0.0
    for step in range(steps):
        batch = source.batch(step)
        began = time.perf_counter()
        writer.sketches(batch)
        hand_over.append(time.perf_counter() - began)
        writer.numbers(NumberBatch(step, "train", ["loss"], [None], np.array([1.0 / (step + 1)])))
        if step % STEPS_PER_FLUSH == STEPS_PER_FLUSH - 1:
            began, began_cpu = time.perf_counter(), time.process_time()
            assert writer.flush(60)
            flushing += time.perf_counter() - began
            cpu += time.process_time() - began_cpu
    writer.close()
    assert writer.counts.dropped == {}
    records = steps * SITES
    return {
        "hand-over of a step (500 sketches), median, us": 1e6 * float(np.median(hand_over)),
        "hand-over of a step (500 sketches), p99, us": 1e6 * float(np.quantile(hand_over, 0.99)),
        "write and fsync, us/record": 1e6 * flushing / records,
        "write, CPU, us/record": 1e6 * cpu / records,
        "live segments, bytes/record": folder_size(f"{path}/live") / records,
    }


def ask(run: Run, label: str) -> dict[str, float]:
    """Warm times of the questions that pages ask."""
    module, last = "transformer.h.3.block.2", run.steps[-1]
    name = f"{module}/param_grad/weight"
    heatmap = "select name, step, rms from stats"
    one = [name]
    questions: dict[str, Callable[[], object]] = {
        "q1 one series": lambda: run.stats(f"{module}.weight", kind="param_grad", stat="rms"),
        "q1 one series, SQL": lambda: run.sql("select step, rms from stats where name = ?", one),
        "q2 one step, 6 statistics": lambda: run.stats(steps=last // 2),
        "q3 heatmap of one statistic": lambda: run.stats(stat="rms"),
        "q3 heatmap of one statistic, SQL": lambda: run.sql(heatmap, frame="arrow"),
        "rms of 120,000 sketches": lambda: run.stats(stat="rms", steps=(0, 120_000 // SITES - 1)),
        "p99 of 120,000 sketches": lambda: run.stats(stat="p99", steps=(0, 120_000 // SITES - 1)),
        "one histogram": lambda: run.histogram(name, step=last // 2),
        "run.info": lambda: run.info,
    }
    return {f"{q}, {label}, ms": 1e3 * best(f) for q, f in questions.items()}


def best(question: Callable[[], object], times: int = 5) -> float:
    question()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        question()
        taken.append(time.perf_counter() - began)
    return min(taken)


def bins_as_they_could_be(source: Source) -> dict[str, float]:
    """Bytes per record of the bins alone: sparse as we keep them, or dense from the lowest up."""
    batches = [source.batch(step).sketches for step in range(STEPS_PER_FLUSH)]
    ids = np.concatenate([b.bin_ids for b in batches])
    counts = np.concatenate([b.bin_counts for b in batches])
    lengths = np.concatenate([np.diff(b.offsets) for b in batches])
    sparse = pa.table({"ids": as_lists(ids, lengths), "counts": as_lists(counts, lengths)})
    dense = dense_bins(ids, counts, lengths)
    rows = len(lengths)
    split, plain = "BYTE_STREAM_SPLIT", "PLAIN"
    return {
        "bins sparse, plain, bytes/record": encoded_size(sparse, plain) / rows,
        "bins sparse, split, bytes/record": encoded_size(sparse, split) / rows,
        "bins lo+dense, plain, bytes/record": encoded_size(dense, plain) / rows,
        "bins lo+dense, split, bytes/record": encoded_size(dense, split) / rows,
    }


def dense_bins(ids: np.ndarray, counts: np.ndarray, lengths: np.ndarray) -> pa.Table:
    ends = np.cumsum(lengths)
    columns: dict[str, pa.Array] = {}
    for sign in (0, 1):
        lows, parts = [], []
        for end, n in zip(ends, lengths, strict=True):
            mine, count = ids[end - n : end].astype(int), counts[end - n : end]
            # The bin of zeros stands apart.
            chosen = ((mine >= HALF) == bool(sign)) & (mine % HALF != 0)
            mine, count = mine[chosen] - HALF * sign, count[chosen]
            low = mine[0] if len(mine) else 0
            full = np.zeros(mine[-1] - low + 1 if len(mine) else 0, np.int64)
            full[mine - low] = count
            lows.append(low)
            parts.append(full)
        sizes = np.array([len(p) for p in parts])
        columns[f"low_{sign}"] = pa.array(lows, pa.int16())
        columns[f"counts_{sign}"] = as_lists(np.concatenate(parts), sizes)
    return pa.table(columns)


def as_lists(values: np.ndarray, lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def encoded_size(table: pa.Table, encoding: str) -> int:
    data = io.BytesIO()
    lists = [f"{f.name}.list.element" for f in table.schema if pa.types.is_list(f.type)]
    pq.write_table(
        table,
        data,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        column_encoding=dict.fromkeys(lists, encoding),
        store_schema=False,
    )
    return data.tell()


def folder_size(path: str) -> int:
    return sum(os.path.getsize(os.path.join(d, n)) for d, _, names in os.walk(path) for n in names)


def measure(records: int, path: str) -> dict[str, float]:
    source = Source()
    steps = records // SITES
    figures = bins_as_they_could_be(source)
    figures |= write(path, source, steps)
    began = time.perf_counter()
    with open_run(path) as run:
        run.stats(steps=0)
        figures["first answer after opening, live, ms"] = 1e3 * (time.perf_counter() - began)
        figures |= ask(run, f"{steps // STEPS_PER_FLUSH} live segments")
    began = time.perf_counter()
    compact(path)
    figures["compaction, us/record"] = 1e6 * (time.perf_counter() - began) / (steps * SITES)
    figures["compacted, bytes/record"] = folder_size(f"{path}/stats") / (steps * SITES)
    began = time.perf_counter()
    with open_run(path) as run:
        run.stats(steps=0)
        figures["first answer after opening, compacted, ms"] = 1e3 * (time.perf_counter() - began)
        figures |= ask(run, "compacted")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    arguments = parser.parse_args()
    path = os.path.join(arguments.folder, f"sonde-bench-store-{os.getpid()}")
    try:
        figures = measure(arguments.records, path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
    machine = f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}"
    versions = f"sonde {VERSION}, pyarrow {pa.__version__}, duckdb {duckdb.__version__}"
    target = os.path.join(os.path.dirname(__file__), "results", "store.csv")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["figure", "value", "records", "machine", "date", "version"])
        for name, value in figures.items():
            print(f"{value:10.2f}  {name}")
            date = time.strftime("%Y-%m-%d")
            lines.writerow([name, f"{value:.3f}", arguments.records, machine, date, versions])


if __name__ == "__main__":
    main()
