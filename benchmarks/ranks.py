"""What reading costs when many ranks have written a run, and when a folder holds many runs.

    python benchmarks/ranks.py [--ranks 1024] [--sites 100] [--steps 50] [--runs 2000]

Each rank is an attempt of its own that writes one shard of every site at every step, without
training. `compact_s` is `sonde compact` of all ranks. `ls_s` is `sonde ls` of the folder, with the
start of Python; `open_s` and `series_s` are the times until a fresh process has opened the run and
read one merged series of `rms`, `again_s` that of a second series. `runs_s` is `sonde ls` of a
folder of runs with one rank each.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sonde._version import VERSION
from sonde.kernels.reference import sketch
from sonde.record import Site, SiteInfo, SketchBatch
from sonde.sketch import concatenate
from sonde.store.writing.compaction import compact
from sonde.store.writing.writer import Writer

COLUMNS = (
    *("date", "machine", "cores", "load", "python", "sonde", "note", "ranks", "sites", "steps"),
    *("write_s", "files", "run_mb", "compact_s", "ls_s", "open_s", "series_s", "again_s"),
    *("runs", "runs_s"),
)
READ = """
import json, sys, time
import sonde
began = time.perf_counter()
run = sonde.open(sys.argv[1])
steps = len(run.sites)
opened = time.perf_counter()
first = run.stats("h.0.weight", kind="param", stat=["rms", "count"], frame="arrow")
read = time.perf_counter()
run.stats("h.1.weight", kind="param", stat="rms", frame="arrow")
again = time.perf_counter()
rows = first.num_rows, sum(first["count"].to_pylist())
print(json.dumps([opened - began, read - opened, again - read, *rows]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measured(Path(folder), options)
    for name, value in row.items():
        print(f"{name:>10}  {value}")
    if options.out is not None:
        is_new = not options.out.exists()
        with options.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if is_new:
                writer.writeheader()
            writer.writerow(row)


def measured(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    ranks, sites, steps = options.ranks, options.sites, options.steps
    run = folder / "many" / "run"
    began = time.perf_counter()
    for rank in range(ranks):
        written(run, rank, ranks, sites, steps)
    wrote = time.perf_counter()
    compact(str(run))
    compacted = time.perf_counter()
    opened, series, again, rows, count = json.loads(asked("-c", READ, run))
    assert (rows, count) == (steps, steps * ranks * 64)
    size = sum(p.stat().st_size for p in run.rglob("*") if p.is_file())
    ls_s = timed("-m", "sonde", "ls", folder / "many")
    for i in range(options.runs):
        written(folder / "runs" / f"run{i:05d}", 0, 1, 4, 1)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "sonde": VERSION,
        "note": options.note,
        "ranks": ranks,
        "sites": sites,
        "steps": steps,
        "write_s": round(wrote - began, 2),
        "files": sum(1 for p in run.rglob("*.parquet")),
        "run_mb": round(size / 1e6, 1),
        "compact_s": round(compacted - wrote, 2),
        "ls_s": round(ls_s, 2),
        "open_s": round(opened, 2),
        "series_s": round(series, 2),
        "again_s": round(again, 2),
        "runs": options.runs,
        "runs_s": round(timed("-m", "sonde", "ls", folder / "runs"), 2) if options.runs else "",
    }


def written(path: Path, rank: int, ranks: int, sites: int, steps: int) -> None:
    """One rank: a shard of each site at each step."""
    x = np.random.default_rng(rank).normal(size=64)
    one = sketch(x).columns()
    batch = concatenate([one] * sites)
    ids = np.arange(sites, dtype=np.int32)
    with Writer(path, rank=rank, world_size=ranks, compact=False, flush_s=30) as writer:
        writer.sites(
            [
                SiteInfo(
                    *(i, Site(f"h.{i}", "param", 0, "weight"), "float32", (64 * ranks,), "Linear"),
                    part=rank,
                    parts=ranks,
                )
                for i in range(sites)
            ]
        )
        for step in range(steps):
            writer.sketches(SketchBatch(step, "train", ids, batch))


def asked(*command: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=True
    )
    return done.stdout


def timed(*command: object) -> float:
    began = time.perf_counter()
    asked(*command)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
