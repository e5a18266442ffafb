"""What watching costs as models and runs grow: memory, time per step, opening, closing, reading.

    python benchmarks/scale.py [--modules 100 1000 4000 10000] [--device cpu] [--steps 6]

A model is a stack of Linears of width 16 with Adam, watched with the default kinds at every step.
Each size trains in a process of its own: first plain, then watched, then plain again. Nothing of
Sonde is loaded before the first plain steps, so libraries count as well.

Memory is that of the whole process, less what plain training takes: `host_peak_mb` is the most that
was resident while the watch was open, `host_left_mb` what stays after `close()` of memory of its
own, `mapped_left_mb` what stays of files that are mapped: the code of libraries. On a GPU,
`device_peak_mb` and `device_left_mb` are what the driver says is in use, less what it says of plain
training; pools of the allocator count. `us_per_module` is what a recorded step takes longer than a
plain one, over the modules.

`read_open_s` and `read_rms_s` are the times to open the run and to read one statistic of all sites
at all steps, `read_p99_s` that to read a quantile of all sites at the last step. The row of 100,000
steps has no training: records of some sites go through the writer, and the run is read; there the
quantile is that of one site at all steps.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WIDTH, BATCH = 16, 4
COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "kernel", "threads", "note"),
    *("model", "modules", "sites", "steps", "dropped", "plain_ms", "watched_ms", "us_per_module"),
    *("watch_s", "close_s", "host_plain_mb", "host_peak_mb", "host_left_mb", "mapped_left_mb"),
    *("device_plain_mb", "device_peak_mb", "device_left_mb", "device_kb_per_module"),
    *("run_mb", "read_open_s", "read_rms_s", "read_p99_s"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", type=int, nargs="*", default=[100, 1000, 4000, 10000])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=6, help="recorded steps of each size")
    parser.add_argument("--long", type=int, default=100_000, help="steps of the run that is read")
    parser.add_argument("--sites", type=int, default=20, help="sites of the run that is read")
    parser.add_argument("--note", default="", help="kept in each row")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(trained(options.one, options.device, options.steps)))
        return
    kind = "gpu" if options.device.startswith("cuda") else "cpu"
    out = options.out or Path(f"benchmarks/results/scale-{kind}.csv")
    rows: list[dict[str, object]] = []
    for n in options.modules:
        rows.append(alone(n, options.device, options.steps))
        print(rows[-1], flush=True)
    if options.long:
        rows.append(long_run(options.long, options.sites))
        print(rows[-1], flush=True)
    from overhead import surroundings

    for row in rows:
        row |= surroundings(str(row["model"])) | {"note": options.note}
    keep(out, rows)


def keep(out: Path, rows: list[dict[str, object]]) -> None:
    """Add the rows to those that are there: what was before stays visible."""
    earlier = []
    if out.exists():
        with out.open(newline="") as file:
            earlier = list(csv.DictReader(file))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows([*earlier, *rows])


def alone(n: int, device: str, steps: int) -> dict[str, object]:
    """The figures of a size, from a process of its own."""
    given = [sys.executable, __file__, "--one", str(n), "--device", device, "--steps", str(steps)]
    done = subprocess.run(given, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


class Memory:
    """What the process and its device hold, in MB."""

    def __init__(self, device: str) -> None:
        self._device = device

    def host(self) -> float:
        return _status("VmRSS")

    def own(self) -> float:
        return _status("RssAnon")

    def mapped(self) -> float:
        return _status("RssFile")

    def host_peak(self) -> float:
        """The most since `forget_peak`."""
        return _status("VmHWM")

    def forget_peak(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")

    def device(self) -> float:
        if not self._device.startswith("cuda"):
            return 0.0
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 1e6


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def trained(n: int, device: str, steps: int) -> dict[str, object]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    memory = Memory(device)
    # A tree of a hundred each: the root's own hooks stay a small share of it.
    parts = [nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(100))) for _ in range(n // 100)]
    for linear in (m for part in parts for m in part):
        nn.init.orthogonal_(linear.weight)  # values keep their size however many there are
    model = nn.Sequential(*parts).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x = torch.randn(BATCH, WIDTH, device=device)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    plain = _times(step, steps + 2)
    host, on_device = memory.host(), memory.device()
    own, mapped = memory.own(), memory.mapped()
    memory.forget_peak()

    import sonde

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        watch = sonde.watch(model, optimizer, every=1, dir=folder, name="scale")
        watch_s = time.perf_counter() - began
        watched, most = [], 0.0
        for _ in range(steps + 2):
            watched += _times(step, 1)
            most = max(most, memory.device())
        dropped = watch._session.capture.steps.dropped
        began = time.perf_counter()
        watch.close()
        close_s = time.perf_counter() - began
        peak = memory.host_peak()
        del watch
        gc.collect()
        own, mapped = memory.own() - own, memory.mapped() - mapped
        device_left = memory.device()
        plain += _times(step, steps)
        path = Path(folder) / "scale"
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        read = reading(path)
    plain_s, watched_s = statistics.median(plain[2:]), statistics.median(watched[2:])
    return {
        "model": f"{n} Linears, Adam, {device}",
        "modules": n,
        "steps": steps + 2,
        "dropped": dropped,
        "plain_ms": round(1e3 * plain_s, 2),
        "watched_ms": round(1e3 * watched_s, 2),
        "watch_s": round(watch_s, 3),
        "us_per_module": round(1e6 * (watched_s - plain_s) / n, 1),
        "close_s": round(close_s, 3),
        "host_plain_mb": round(host),
        "host_peak_mb": round(peak - host),
        "host_left_mb": round(own),
        "mapped_left_mb": round(mapped),
        **({} if not most else _on_device(n, on_device, most, device_left)),
        "run_mb": round(size / 1e6, 1),
        **read,
    }


def _on_device(n: int, plain: float, peak: float, left: float) -> dict[str, object]:
    return {
        "device_plain_mb": round(plain),
        "device_peak_mb": round(peak - plain),
        "device_left_mb": round(left - plain),
        "device_kb_per_module": round((peak - plain) * 1e3 / n, 1),
    }


def _times(step: Callable[[], None], n: int) -> list[float]:
    found = []
    for _ in range(n):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return found


def reading(path: Path, tail: str = "*", last: int | None = 1) -> dict[str, object]:
    """Seconds to open a run, to read a statistic of all its sites at all steps, and quantiles of
    some: those of a pattern, at the last steps."""
    import sonde

    began = time.perf_counter()
    run = sonde.open(path)
    sites = len(run.sites)
    found: dict[str, object] = {"sites": sites}
    found["read_open_s"] = round(time.perf_counter() - began, 3)
    began = time.perf_counter()
    run.stats("*", stat="rms")
    found["read_rms_s"] = round(time.perf_counter() - began, 3)
    steps = None if last is None else (run.steps[-last], run.steps[-1] + 1)
    began = time.perf_counter()
    run.stats(tail, stat="p99", steps=steps)
    found["read_p99_s"] = round(time.perf_counter() - began, 3)
    return found


def long_run(steps: int, sites: int) -> dict[str, object]:
    """A run of many steps, written as training would write it, and read."""
    import numpy as np

    from sonde.kernels.reference import sketch
    from sonde.record import COUNTS, EXTREMA, SUMS, Site, SiteInfo, SketchBatch
    from sonde.sketch import from_dense
    from sonde.store import Writer
    from sonde.store.writing.compaction import compact

    rng = np.random.default_rng(0)
    fields, shapes = (COUNTS, SUMS, EXTREMA), []
    for _ in range(16):
        some = [sketch(rng.standard_normal(4096) * 2.0 ** rng.normal()) for _ in range(sites)]
        columns = [np.array([[getattr(s, f) for f in of] for s in some]) for of in fields]
        shapes.append(from_dense(*columns, np.stack([s.bins for s in some])))
    ids = np.arange(sites, dtype=np.int32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long"
        writer = Writer(path)
        writer.sites(
            [
                SiteInfo(i, Site(f"layers.{i}", "output", 0, "0"), "float32", (64, 64), "Linear")
                for i in range(sites)
            ]
        )
        began = time.perf_counter()
        for step in range(steps):
            writer.sketches(SketchBatch(step, "train", ids, shapes[step % len(shapes)]))
            if step % 500 == 499:
                writer.flush()
        writer.close("finished")
        written_s = time.perf_counter() - began
        compact(path)
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        return {
            "model": f"{steps} steps, {sites} sites, written",
            "steps": steps,
            "watched_ms": round(1e3 * written_s / steps, 3),
            "run_mb": round(size / 1e6, 1),
            **reading(path, "layers.0", None),
        }


if __name__ == "__main__":
    main()
