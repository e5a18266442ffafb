"""Memory: rows take as much for a large model as for a small one, and are given back."""

import gc
import json
import subprocess
import sys
import textwrap
from dataclasses import fields
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import sonde
from sonde.capture.native import Row, Seen
from sonde.capture.torch.collector import HeldTensor
from sonde.capture.torch.rows import host
from sonde.capture.torch.tap import Tap
from sonde.kernels import layout
from sonde.record import SiteInfo


class Shared(nn.Module):
    """Modules that are called twice, outputs that are inputs of others, a branch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
        self.again = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        x = self.again(self.again(self.layers(x)))
        return self.layers[3](x) + x


def linears(n):
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(n)))


def train(model, optimizer, steps, micro_batches=1):
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        for _ in range(micro_batches):
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def recorded(watching, micro_batches, **options):
    torch.manual_seed(0)
    model = Shared()
    optimizer = torch.optim.Adam(model.parameters())
    watch, memory = watching(model, optimizer, **options)
    train(model, optimizer, 3, micro_batches)
    watch.close()
    assert not memory.counted("failed")
    return memory


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("slice_rows", [4, 9, 50])
@pytest.mark.parametrize("table", ["HostTable", "PlainTable"])
def test_a_step_in_parts_has_the_numbers_of_a_whole_one(
    watching, monkeypatch, table, slice_rows, micro_batches
):
    if table == "PlainTable":
        monkeypatch.setattr(host.c, "available", lambda: False)
    whole = recorded(watching, micro_batches)
    assert not whole.counted("sliced")
    monkeypatch.setattr(getattr(host, table), "slice_rows", slice_rows)
    parts = recorded(watching, micro_batches)
    assert parts.counted("sliced")
    assert set(parts.steps) == set(whole.steps)
    for step in range(3):
        mine, its = parts.at(step), whole.at(step)
        assert mine.keys() == its.keys()
        for name, wanted in its.items():
            found = mine[name]
            for field in fields(wanted):
                a, b = getattr(found, field.name), getattr(wanted, field.name)
                assert np.allclose(a, b, rtol=1e-12, atol=0), (step, name, field.name)


def test_rows_take_as_much_memory_for_a_large_model_as_for_a_small_one(watching, tmp_path):
    taken = {}
    for n in (100, 400):
        model = linears(n)
        optimizer = torch.optim.Adam(model.parameters())
        watch, _ = watching(model, optimizer, log="default", name=str(n))
        train(model, optimizer, 2)
        watch.close()
        taken[n] = sonde.open(tmp_path / str(n)).info["memory"]
    assert taken[400]["sites"] > 4 * host.HostTable.slice_rows
    assert taken[400]["sites"] > 3 * taken[100]["sites"]
    assert taken[400]["host_bytes"] <= 4 * host.HostTable.slice_rows * layout.ROW_BYTES
    assert taken[400]["device_bytes"] == 0


def test_what_the_run_says_of_memory_is_what_tables_hold(watching):
    model = linears(20)
    optimizer = torch.optim.Adam(model.parameters())
    watch, _ = watching(model, optimizer)
    train(model, optimizer, 2)
    watch.flush()
    recorder = watch._session.capture.recorder
    table = recorder.table_on(torch.device("cpu"))
    held = table._rows.nbytes + sum(rows.nbytes for rows in table._pool._free)
    assert recorder.memory["host_bytes"] == held
    watch.close()
    assert table.nbytes[0] <= layout.ROW_BYTES


GROWTH = """
    import gc, json, sys, tempfile
    from pathlib import Path
    import torch
    from torch import nn

    def resident(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

    def train(model, optimizer, steps):
        for _ in range(steps):
            model(torch.ones(2, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def made(n):
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(n)))
        return model, torch.optim.Adam(model.parameters())

    import sonde
    with tempfile.TemporaryDirectory() as folder:
        small, large = made(2), made(1200)
        train(*large, 3)
        with sonde.watch(*small, every=1, dir=folder):  # what is loaded once
            train(*small, 3)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        watch = sonde.watch(*large, every=1, dir=folder)
        train(*large, 4)
        watch.close()
        peak = resident("VmHWM")
        gc.collect()
        print(json.dumps({"most": peak - before, "left": resident("VmRSS") - before}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_the_process_grows_little_with_modules_and_gives_it_back():
    """About 50 and 10 MB; rows for each site would take 700 MB."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GROWTH)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["most"] < 250
    assert found["left"] < 100


def test_a_row_that_was_given_out_again_is_not_taken_for_what_it_held():
    x, opened = torch.ones(3), Row(0, 1)
    seen, held = Seen(x, 0), HeldTensor()
    seen.row = opened
    held.put(x, opened)
    assert seen.row is opened
    opened.window = 2
    assert seen.row is None
    assert held.row_of(x) is None


def test_closing_leaves_no_table_in_the_dicts_of_hooks(watching):
    """A dict keeps the table it grew for a hook, and the table the memory around it."""
    model = linears(3)
    dicts = [getattr(m, n) for m in model.modules() for n in vars(m) if "_hooks" in n]
    fresh = [sys.getsizeof(hooks) for hooks in dicts if hooks is not None]
    watch, _ = watching(model)
    assert [sys.getsizeof(hooks) for hooks in dicts if hooks is not None] != fresh
    watch.close()
    assert [sys.getsizeof(hooks) for hooks in dicts if hooks is not None] == fresh


def test_a_closed_watch_that_is_kept_holds_little_of_each_module(watching):
    """Names and the last statistics for `watch.metrics`; not hooks, rows, sites or passes."""
    model = linears(60)
    watch, _ = watching(model)
    train(model, torch.optim.SGD(model.parameters()), 2)
    watch.step()
    watch.close()
    held, seen, todo = 0, set(), [watch]
    while todo:
        found = gc.get_referents(*todo)
        todo = [o for o in {id(o): o for o in found}.values() if id(o) not in seen]
        todo = [o for o in todo if not isinstance(o, type | ModuleType | FunctionType)]
        seen.update(id(o) for o in todo)
        held += sum(isinstance(o, Tap | SiteInfo | Seen) for o in todo)
    assert held == 0
