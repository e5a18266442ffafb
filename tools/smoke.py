"""The smoke test of an installation: `python smoke.py with` (or `without`) torch.

Records a run, reads it back, and fetches the page and its data from `sonde view`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request

import numpy as np

import sonde

HAS_TORCH = sys.argv[1] == "with"
SONDE = [sys.executable, "-c", "import sys; from sonde.cli import main; sys.exit(main())"]


def watch() -> None:
    """Record with torch."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with sonde.watch(model, optimizer, every=1, name="smoke") as watch:
        for _ in range(4):
            loss = model(torch.randn(16, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)


def write() -> None:
    """Record without a framework."""
    from sonde.kernels.reference import sketch
    from sonde.record import NumberBatch, Site, SiteInfo, SketchBatch
    from sonde.sketch import concatenate
    from sonde.store import Writer

    with Writer("runs/smoke") as writer:
        writer.sites([SiteInfo(0, Site("0", "output"), "float32", (9,), "Linear")])
        for step in range(4):
            rows = concatenate([sketch(np.linspace(-1, 1, 9) * (step + 1)).columns()])
            writer.sketches(SketchBatch(step, "train", np.zeros(1, dtype=np.int32), rows))
            writer.numbers(
                NumberBatch(step, "train", ["loss"], [None], np.array([1.0 / (step + 1)]))
            )


def read() -> None:
    with sonde.open("runs/smoke", frame="arrow") as run:
        assert run.status == "finished", run.status
        stats = run.stats("0", kind="output", stat=["rms", "p99"]).to_pylist()
        assert [row["step"] for row in stats] == [0, 1, 2, 3]
        assert all(row["rms"] > 0 for row in stats)
        assert run.sql("select count(*) as n from scalars where name = 'loss'")["n"][0].as_py() == 4
        assert sum(run.histogram("0", kind="output", step=3).counts) > 0
    for verb in (["ls"], ["show", "runs/smoke"], ["info"], ["query", "runs/smoke", "select 1"]):
        subprocess.run([*SONDE, *verb], check=True, capture_output=True)


def view() -> None:
    """The page, and the runs that it lists."""
    command = [*SONDE, "view", "runs", "--no-browser", "--port=0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(m[0] for line in server.stdout if (m := re.search(r"http://\S+", line)))
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        page = opener.open(address).read().decode()
        assert "<script" in page, page[:200]
        base = address.partition("?")[0]  # the token is a cookie now
        listed = json.load(opener.open(f"{base}api/runs"))
        assert [run["name"] for run in listed["spec"]["runs"]] == ["smoke"]
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if not HAS_TORCH:
        sys.modules["torch"] = None  # type: ignore[assignment]  # also where it can be imported
    (watch if HAS_TORCH else write)()
    read()
    view()
    assert HAS_TORCH or sys.modules["torch"] is None
    print(f"watch, read and view work {sys.argv[1]} torch ({sonde.__file__})")
