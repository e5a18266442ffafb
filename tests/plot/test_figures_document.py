"""The document about figures is true: its code runs as it stands, on a run of the demo's model."""

import re
from pathlib import Path

import matplotlib as mpl
import numpy as np

from sonde.record import Site, SiteInfo, SketchBatch
from sonde.sketch import concatenate
from sonde.store import Writer

DOCUMENT = Path(__file__).parents[2] / "docs" / "figures.md"
PATHS = ("embed", "blocks.0.mlp", "blocks.1.mlp", "head")


def test_code_in_the_document_runs_in_order(tmp_path, monkeypatch):
    from sonde.kernels.reference import sketch

    monkeypatch.chdir(tmp_path)
    with Writer(tmp_path / "runs" / "first", compact=False) as writer:
        sites = [Site(path, "output") for path in PATHS]
        sites += [Site(path, "param_grad", 0, "weight") for path in PATHS]
        writer.sites([SiteInfo(i, s, "float32", (9,), "Linear") for i, s in enumerate(sites)])
        for step in range(4):
            some = np.random.default_rng(step).normal(size=(len(sites), 9))
            rows = concatenate([sketch(x).columns() for x in some])
            ids = np.arange(len(sites), dtype=np.int32)
            writer.sketches(SketchBatch(step, "train", ids, rows))
    mpl.use("Agg")
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 3
    exec("\n".join(blocks), {})
    assert (tmp_path / "gradients.pdf").stat().st_size > 1000
    assert (tmp_path / "numerics.parquet").exists()


def test_every_figure_is_in_the_document():
    from sonde import plot

    assert all(f"`{name}(" in DOCUMENT.read_text() for name in plot.__all__)
