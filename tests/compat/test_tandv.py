"""Behaviours of tandv's tracker and readers on the drop-in, and faults that it does not have."""

import functools
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sonde
from sonde.compat.tandv.track.common import (
    LogFrame,
    SchemaException,
    TrainingStats,
    read_csv,
    read_parquet,
    read_pickle,
)
from sonde.compat.tandv.track.torch import (
    stash_all_stats_and_hist,
    stash_full_tensor,
    stash_hist,
    stash_scalar_stats,
    track,
)
from sonde.logframe import write

pd = pytest.importorskip("pandas")


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def run_steps(model, optimizer, tracker, steps=3, scale=lambda step: 1.0, x=None):
    """Train as the document says. Returns the weight gradients of layer 0 by step."""
    grads = []
    for step in range(steps):
        y = model(torch.randn(5, 4) if x is None else x)
        (y.square().sum() * scale(step)).backward()
        grads.append(model[0].weight.grad.double().clone())
        optimizer.step()
        tracker.step()
        optimizer.zero_grad()
    return grads


def tracked(model=None, steps=3, with_optimizer=True, **options):
    model = model or two_layers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with track(model, optimizer=optimizer if with_optimizer else None, **options) as tracker:
        grads = run_steps(model, optimizer, tracker, steps)
    return read_pickle(tracker.out_path), grads, tracker


def pick(frame, name, tensor_type, stat):
    meta = frame["metadata"]
    rows = frame[(meta["name"] == name) & (meta["tensor_type"] == tensor_type)]
    return dict(zip(rows["metadata", "step"], rows["scalar_stats", stat], strict=True))


def test_tv_1_arguments_have_the_names_order_and_defaults_of_the_original():
    parameters = inspect.signature(track).parameters
    assert {name: p.default for name, p in parameters.items() if name != "module"} == {
        "track_gradients": True,
        "optimizer": None,
        "track_weights": True,
        "include": None,
        "exclude": None,
        "stash_value": None,
        "async_offload": False,
        "offload_inc": 10,
        "offload_type": ".pkl",
        "use_wandb": False,
        "only_stash_during_training": True,
        "init_step": None,
    }


def test_tv_1_the_tracker_holds_the_rows_of_the_last_step(capsys):
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with track(model) as tracker:
        assert len(tracker) == 0
        run_steps(model, optimizer, tracker, 2)
        assert len(tracker) == 4 + 4 + 4 + 4
        assert {stash.tensor_type for stash in tracker} == {
            *("Activation", "Gradient", "Weights", "Weight_Gradients")
        }
        assert tracker[0].first_value["scalar_stats"]["rm2"] > 0
    assert str(tracker.out_path) in capsys.readouterr().out


def test_tv_2_each_tensor_type_has_its_rows_under_its_names():
    frame, _, _ = tracked()
    per_step = frame["metadata"].groupby(["tensor_type", "step"]).size().unstack()
    assert (per_step == 4).all(axis=None)
    assert set(frame["metadata"].query("tensor_type == 'Weights'")["name"]) == {
        *("0", "0.bias", "2", "2.bias")
    }
    assert "" in set(frame["metadata"].query("tensor_type == 'Activation'")["name"])


@pytest.mark.parametrize(("include", "exclude"), [("^0$", None), (None, r"^$|1|2")])
def test_tv_3_include_and_exclude_hold_for_all_types(include, exclude):
    frame, _, _ = tracked(include=include, exclude=exclude)
    found = frame["metadata"].groupby("tensor_type")["name"].agg(set)
    assert found["Activation"] == found["Gradient"] == {"0"}
    for kind in ("Weights", "Weight_Gradients", "Optimiser_State.exp_avg"):
        assert found[kind] == {"0", "0.bias"}


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_tv_4_fault_a_weight_gradient_has_the_step_that_it_belongs_to(with_optimizer):
    """tandv labels it with the step after, and loses the last."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(5, 4)
    with track(model, optimizer=optimizer if with_optimizer else None) as tracker:
        grads = run_steps(model, optimizer, tracker, 3, lambda step: 10.0**step, x)
    found = pick(read_pickle(tracker.out_path), "0", "Weight_Gradients", "rm2")
    expected = {step: float(g.square().mean().sqrt()) for step, g in enumerate(grads)}
    assert found == pytest.approx(expected, rel=1e-5)


def test_tv_4_weights_have_the_step_that_used_them_and_the_last_ones_are_kept():
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = float(model[0].weight.double().square().mean().sqrt())
    with track(model) as tracker:
        run_steps(model, optimizer, tracker)
    frame = read_pickle(tracker.out_path)
    assert pick(frame, "0", "Weights", "rm2")[0] == pytest.approx(first, rel=1e-6)
    last = sonde.open(tracker.watch.path).sketch("0.weight", kind="param", phase="final")
    assert last.rms == pytest.approx(float(model[0].weight.double().square().mean().sqrt()))


@pytest.mark.parametrize("only_training", [True, False])
def test_tv_5_evaluation_is_recorded_where_it_is_asked_for(only_training):
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with track(model, only_stash_during_training=only_training) as tracker:
        run_steps(model, optimizer, tracker, 2)
        model.eval()
        model(torch.full((7, 4), 3.0))
        model.train()
    frame = read_pickle(tracker.out_path)
    rows = frame[(frame["metadata", "name"] == "1") & (frame["metadata", "step"] == 1)]
    totals = rows[rows["metadata", "tensor_type"] == "Activation"]["exponent_counts"].sum(axis=1)
    zeros = rows[rows["metadata", "tensor_type"] == "Activation"]["scalar_stats", "zeros"]
    assert list(totals + zeros) == ([40] if only_training else [40, 56])


@pytest.mark.parametrize("stash", [stash_scalar_stats, stash_hist, stash_all_stats_and_hist, None])
def test_tv_6_each_stash_function_alone_gives_a_log_that_can_be_read(stash):
    frame, _, _ = tracked(stash_value=stash, steps=1)
    assert (frame["scalar_stats", "rm2"] >= 0).all()
    assert frame["exponent_counts"].sum().sum() > 0


def test_tv_6_a_range_of_exponents_is_that_of_the_frame():
    frame, _, _ = tracked(stash_value=functools.partial(stash_hist, min_exp=-3, max_exp=2), steps=1)
    assert list(frame["exponent_counts"].columns) == [-np.inf, *range(-3, 3), np.inf]


def test_tv_6_a_function_of_your_own_becomes_columns():
    frame, grads, _ = tracked(
        stash_value=lambda t: {"l2": t.norm(), "scalar_stats": {"peak": t.abs().max().item()}}
    )
    assert frame["scalar_stats", "l2"].notna().all()
    found = pick(frame, "0", "Weight_Gradients", "l2")
    assert found == pytest.approx({i: float(g.norm()) for i, g in enumerate(grads)}, rel=1e-5)
    peaks, largest = frame["scalar_stats", "peak"], frame["scalar_stats", "max_abs"]
    assert np.allclose(peaks, largest, rtol=1e-6)


def test_tv_6_whole_tensors_do_not_enter_a_frame():
    with pytest.warns(sonde.SondeWarning, match="`sonde.trace` keeps whole tensors"):
        frame, _, _ = tracked(stash_value=stash_full_tensor, steps=1)
    assert len(frame)
    x = torch.randn(3)
    assert np.allclose(stash_full_tensor(x)["full_tensor"], x)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(1000),
        torch.zeros(8),
        torch.full((64,), 300.0, dtype=torch.float16),
        torch.randn(100).bfloat16(),
        torch.arange(5),
        torch.randn(64).to(torch.float8_e4m3fn),
    ],
    ids=["normal", "zeros", "float16", "bfloat16", "integers", "float8"],
)
def test_tv_7_statistics_equal_numpy_in_float64(x):
    """tandv gives NaN for zeros, Inf for float16, and raises for integers and float8."""
    found, v = stash_scalar_stats(x), np.abs(x.double().numpy())
    for power, name in ((1, "mean_abs"), (2, "rm2"), (4, "rm4"), (8, "rm8")):
        assert found[name] == pytest.approx(np.mean(v**power) ** (1 / power), rel=1e-9), name
    assert found["mean"] == pytest.approx(float(x.double().mean()))
    assert found["std"] == pytest.approx(float(x.double().std()))
    assert (found["max_abs"], found["min_abs"]) == (v.max(), v.min())


def test_tv_8_columns_are_those_of_frexp_and_nothing_else_is_in_column_zero():
    """tandv counts zeros, infinities and NaN as values between 1/2 and 1."""
    x = torch.tensor([0.0, 1.0, 0.5, 0.75, 2.0**-20, 2.0**20, torch.inf, torch.nan])
    found = stash_hist(x)["exp_hist"]
    counts = dict(zip(found["bins"], found["hist"], strict=True))
    assert {n: c for n, c in counts.items() if c} == {1: 1, 0: 2, -17: 1, 17: 2}
    stats = stash_scalar_stats(x)
    assert (stats["zeros"], stats["nans"], stats["infs"]) == (1, 1, 1)


KILLED = """
import os, torch
from torch import nn
from sonde.compat.tandv.track.torch import track
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with track(model, async_offload=True, offload_inc=1) as tracker:
    for _ in range(3):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        tracker.step()
    tracker.watch.flush()
    os.kill(os.getpid(), 9)
"""


def test_tv_9_what_was_written_before_a_kill_can_be_read():
    subprocess.run([sys.executable, "-c", KILLED], check=False, timeout=120)
    frame = sonde.open("tandv/latest").to_logframe()
    assert sorted(set(frame["metadata", "step"])) == [0, 1, 2]


def test_tv_10_numerics_and_the_frame_go_to_wandb(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="t", reinit="finish_previous")
    logged, artifacts = [], []
    log, log_artifact = run.log, run.log_artifact
    monkeypatch.setattr(run, "log", lambda row, **o: (logged.append(row), log(row, **o))[1])
    monkeypatch.setattr(
        run, "log_artifact", lambda a: (artifacts.append(a.type), log_artifact(a))[1]
    )
    try:
        frame, _, _ = tracked(use_wandb=True)
    finally:
        wandb.finish()
    rows = [row for row in logged if "Numerics.Activation/rm2" in row]
    assert rows
    step = rows[-1]["sonde/step"]
    chosen = frame["metadata", "tensor_type"].eq("Activation") & frame["metadata", "step"].eq(step)
    expected = frame[chosen]["scalar_stats", "rm2"].mean()
    assert rows[-1]["Numerics.Activation/rm2"] == pytest.approx(expected, rel=1e-6)
    types = ("Activation", "Gradient", "Weights", "Weight_Gradients", "Optimiser_State")
    stats = ("mean", "std", "mean_abs", "max_abs", "min_abs", "rm2", "rm4", "rm8")
    rates = ("underflow_rate", "overflow_rate")
    names = {f"Numerics.{t}/{s}" for t in types for s in (*stats, *rates)}
    assert set(rows[-1]) == names | {"sonde/step"}, "and nothing of single tensors"
    assert artifacts == ["tandv-logframe"]


def test_tv_10_wandb_without_a_run_is_an_error():
    with pytest.raises(sonde.SondeError, match="no active W&B run"):
        track(two_layers(), use_wandb=True)


def test_tv_11_dtypes_have_no_prefix():
    model = nn.Linear(4, 2, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with track(model) as tracker:
        model(torch.randn(3, 4).bfloat16()).sum().backward()
        optimizer.step()
        tracker.step()
    assert set(read_pickle(tracker.out_path)["metadata", "dtype"]) == {"bfloat16"}


def test_tv_13_the_schema_is_there_to_be_asked():
    assert set(LogFrame.schema) == {"metadata", "scalar_stats", "exponent_counts"}


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("frames"))
        return tracked(steps=2)[0]


@pytest.mark.parametrize("ending", [".pkl", ".pkl.gz", ".parquet", ".csv"])
def test_tv_14_readers_give_the_frame_back(frame, tmp_path, ending):
    path = tmp_path / f"frame{ending}"
    frame.to_pickle(path) if ".pkl" in ending else write(frame, path)
    read = {".parquet": read_parquet, ".csv": read_csv}.get(ending, read_pickle)
    assert read(path)["exponent_counts"].to_numpy().tolist() == (
        frame["exponent_counts"].to_numpy().tolist()
    )


def test_tv_14_a_pickle_can_be_an_open_file_and_have_any_name(frame, tmp_path):
    path = tmp_path / "numerics.dat"
    frame.to_pickle(path)
    assert len(read_pickle(path)) == len(frame)
    with path.open("rb") as file:
        assert len(read_pickle(file)) == len(frame)


def test_tv_14_what_is_no_logframe_is_named(frame, tmp_path):
    frame.drop(columns=[("metadata", "step")]).to_pickle(tmp_path / "bad.pkl")
    with pytest.raises(SchemaException, match=r"'step'.* is missing"):
        read_pickle(tmp_path / "bad.pkl")
    with pytest.raises(FileNotFoundError):
        read_pickle("nowhere.pkl")


class _Attack:
    def __reduce__(self):
        return (os.system, ("touch ran",))


def test_fault_a_pickle_that_would_run_code_is_refused(tmp_path):
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(_Attack()))
    with pytest.raises(SchemaException, match="would load"):
        read_pickle(tmp_path / "evil.pkl")
    assert not Path("ran").exists()


def test_tv_15_training_statistics_have_as_many_losses_as_steps():
    assert TrainingStats([0, 1], [2.0, 1.0]).val_loss is None
    with pytest.raises(ValueError, match="`val_loss` has 1 values for 2 steps"):
        TrainingStats([0, 1], [2.0, 1.0], [3.0])


def test_fault_optimizer_state_has_the_name_of_its_parameter():
    """tandv pairs states with parameters in order, so a subset gets the wrong names."""
    model = two_layers()
    optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-2)
    with track(model, optimizer=optimizer) as tracker:
        run_steps(model, optimizer, tracker, 2)
    meta = read_pickle(tracker.out_path)["metadata"]
    states = meta[meta["tensor_type"].str.startswith("Optimiser_State")]
    assert set(states["name"]) == {"2", "2.bias"}


def test_fault_the_error_of_the_user_is_the_one_that_is_raised():
    """tandv raises FileNotFoundError in its place when no step has ended."""
    with pytest.raises(ZeroDivisionError), track(two_layers()) as tracker:
        raise ZeroDivisionError
    assert tracker.out_path is None


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.fc(x))
        return {"y": y, "index": y.argmax(-1), "none": None}


def test_fault_in_place_operations_and_dicts_of_tensors_are_tracked():
    """tandv raises for both."""
    model = Structured()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with track(model) as tracker:
        model(torch.randn(3, 4))["y"].sum().backward()
        optimizer.step()
        tracker.step()
    names = set(read_pickle(tracker.out_path)["metadata"]["name"])
    assert {"fc", "relu", "./y"} <= names
