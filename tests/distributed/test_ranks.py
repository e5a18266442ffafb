"""Ranks of real trainings record what one process would: each value once, and nothing waits."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ranked_training import CLIPPED, MICRO, SCENARIOS, STEPS, oracle

import sonde
from sonde.kernels import reference

SCRIPT = Path(__file__).with_name("ranked_training.py")
WORLD = "world"
SCALES = {
    **dict.fromkeys(("ddp", "fsdp2", "fsdp1", "hsdp", "zero"), WORLD),
    **dict.fromkeys(("fsdp_tp", "ddp_tp"), 2),
    "pp": MICRO,
}
"""How many times those of one process gradients of activations are. A rank with a batch of its own
divides its loss by that batch; a pipeline divides by the number of micro-batches at its end."""

TOLERANCE = {
    "param": 1e-9,
    "param_grad": 1e-9,
    "update": 1e-6,  # Adam divides by the root of a small number
    "optim": 1e-9,
    "output": 1e-9,
    "output_grad": 1e-9,
    "input": 1e-12,
}
"""Of norms and extrema, relative to the root mean square: ranks add in another order."""


def launch(folder, world, names, *options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", *options]
    done = subprocess.run(
        [sys.executable, *command, SCRIPT, folder, ",".join(names)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.fixture(scope="module", params=SCENARIOS)
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    launch(folder, request.param, SCENARIOS[request.param])
    return folder, request.param


@pytest.fixture(scope="module")
def oracles():
    return {clip: oracle(clip=clip) for clip in (False, True)}


def cases():
    return [(world, name) for world, names in SCENARIOS.items() for name in names]


def result(folder, name, rank):
    return torch.load(folder / f"{name}-{rank}.pt", weights_only=False)


def compare(run, expected, scale, left_out=()):
    """Every site of the oracle, at every step; the names that were compared."""
    rows = run.sql("select * from stages", frame="arrow").to_pylist()
    found = {(row["step"], row["name"]): row for row in rows if row["phase"] == "train"}
    seen = set()
    for step, tensors in enumerate(expected):
        for name, x in tensors.items():
            kind = name.split("/")[1]
            if name in left_out:
                continue
            x = x * scale if kind == "output_grad" else x
            row = found[step, name]
            assert row["count"] == x.size, (step, name)
            size = np.sqrt(np.mean(x**2))
            close = {"rtol": TOLERANCE[kind], "atol": TOLERANCE[kind] * size}
            for stat, value in {
                "rms": size,
                "mean": x.mean(),
                "min": x.min(),
                "max": x.max(),
                "norm": np.sqrt(np.sum(x**2)),
            }.items():
                np.testing.assert_allclose(
                    row[stat], value, err_msg=f"{step} {name} {stat}", **close
                )
            seen.add(name)
    return seen, {name for _, name in found}


@pytest.mark.parametrize(
    "name", sorted({name for _, name in cases()} - {"drifting", "uneven", "unnamed"})
)
def test_merged_statistics_are_those_of_one_process(name, trained, oracles):
    folder, world = trained
    if name not in SCENARIOS[world]:
        pytest.skip(f"not on {world} ranks")
    run = sonde.open(folder / name)
    expected = oracles[name in CLIPPED]
    scale = SCALES.get(name, 1)
    scale = world if scale == WORLD else scale
    # Each stage of a pipeline has inputs and outputs of its own, and they go by one name.
    stage = {"./input/0", "./output/0", "./output_grad/0"} if name == "pp" else set()
    # Ranks add these up inside the optimizer, where nobody sees the sum.
    norms = [n for n in expected[0] if "norm/param_grad" in n] if name == "sp" else []
    # The optimizer inside that of ZeRO has the state, and is not watched.
    state = [n for n in expected[0] if "/optim/" in n] if name == "zero" else []
    compared, recorded = compare(run, expected, scale, {*stage, *norms, *state})
    assert compared == recorded - stage
    assert {event["place"] for event in run.info["skipped"]} == set(norms)


def test_training_is_the_same_with_and_without_a_watch(trained):
    folder, world = trained
    for name in SCENARIOS[world]:
        for rank in range(world):
            found = result(folder, name, rank)
            assert found["plain"]["losses"] == found["watched"]["losses"], (name, rank)
            for a, b in zip(found["plain"]["weights"], found["watched"]["weights"], strict=True):
                assert torch.equal(a, b), (name, rank)


def test_no_collective_is_added(trained):
    folder, world = trained
    for name in SCENARIOS[world]:
        for rank in range(world):
            found = result(folder, name, rank)
            plain, watched = (found[which]["collectives"] for which in ("plain", "watched"))
            # Meshes of the second training are groups of their own.
            plain, watched = ([sum(step) for step in each] for each in (plain, watched))
            assert plain == watched, (name, rank)
            assert len(plain) == STEPS
            assert name == "pp" or sum(plain) > 0


def test_no_step_copies_more_to_the_host(trained):
    folder, world = trained
    for name in SCENARIOS[world]:
        for rank in range(world):
            found = result(folder, name, rank)
            if name != "pp":
                assert found["plain"]["copies"] == found["watched"]["copies"], (name, rank)


def test_bins_merge_to_those_of_the_whole_tensor(trained, oracles):
    folder, _ = trained
    run = sonde.open(folder / "fsdp2")
    for site in ("blocks.0.up/param/weight", "head/param/weight", "blocks.1.act/output/0"):
        whole = reference.sketch(oracles[True][1][site])
        merged = run.sketch(site, step=1)
        assert (merged.bins == whole.bins).all()


def test_ranks_without_a_name_write_one_run(trained):
    folder, world = trained
    if world != 2:
        pytest.skip("two ranks are enough")
    (path,) = (folder / "unnamed").iterdir()
    assert [state["rank"] for state in sonde.open(path).info["ranks"]["states"]] == [0, 1]


def test_ranks_that_record_differently_give_what_is_whole(trained):
    folder, world = trained
    if world != 4:
        pytest.skip("the other ranks have nothing to differ in")
    run = sonde.open(folder / "uneven")
    assert run.info["ranks"]["missing"] == [3]
    # The last rank has no watch, and none of the six rows of this weight.
    assert run.stats("embed.weight", kind="param", stat="count", frame="arrow").num_rows == 0
    whole = run.stats("blocks.0.norm.weight", kind="param", stat="count", frame="arrow")
    assert whole["step"].to_pylist() == [0, 2]
    assert set(whole["count"].to_pylist()) == {6}
    own = run.stats("embed.weight", kind="param", stat="count", rank=0, frame="arrow")
    assert own["step"].to_pylist() == [0, 1, 2]


def test_equal_replicas_do_not_drift(trained):
    folder, world = trained
    for name in SCENARIOS[world]:
        if name not in ("drifting", "unnamed"):
            assert sonde.open(folder / name).drift() == [], name


def test_a_replica_that_drifts_and_a_batch_that_all_have_are_named(trained):
    folder, world = trained
    if world != 2:
        pytest.skip("two ranks are enough")
    run = sonde.open(folder / "drifting")
    found = {(drift.what, drift.name): drift for drift in run.drift()}
    batch = found.pop(("batch", "./input"))
    assert (batch.ranks, batch.step, batch.steps) == ((0, 1), 0, STEPS)
    weight = found["replica", "head/param/weight"]
    assert (weight.ranks, weight.step) == ((1,), 1)
    assert all(drift.ranks == (1,) and drift.step >= 1 for drift in found.values())
    assert run.info["drift"]
    shown = subprocess.run(
        [sys.executable, "-m", "sonde", "show", folder / "drifting"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "DistributedSampler" in shown
    assert "differs from the other replicas since step 1" in shown


def test_a_restart_by_the_launcher_goes_on_with_the_run(tmp_path):
    launch(tmp_path, 2, ["elastic"], "--max-restarts=1")
    run = sonde.open(tmp_path / "elastic")
    attempts = [(a["rank"], a["attempt"], a["resume_from_step"]) for a in run.info["attempts"]]
    assert attempts == [(0, 0, None), (0, 1, 1), (1, 0, None), (1, 1, 1)]
    rows = run.stats("head.weight", kind="param", stat="count", frame="arrow")
    assert rows["step"].to_pylist() == list(range(STEPS))
    assert set(rows["count"].to_pylist()) == {18}
    assert not [drift for drift in run.drift() if drift.what == "replica"]
    assert run.status == "finished"


def test_a_killed_rank_is_named_and_the_others_are_whole(tmp_path):
    said = {}
    for names in ("dying", "dying_watched"):
        port = str(free_port())
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        ranks = [
            subprocess.Popen(
                [sys.executable, SCRIPT, tmp_path, names],
                env=environment | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        said[names] = (outputs, [rank.returncode for rank in ranks])
    assert said["dying"] == said["dying_watched"]
    assert said["dying"][1] == [3, -signal.SIGKILL]
    run = sonde.open(tmp_path / "dying")
    assert run.info["ranks"]["crashed"] == [1]
    states = {state["rank"]: state for state in run.info["ranks"]["states"]}
    assert states[0]["status"] == "finished"
    for rank in range(2):
        steps = run.stats("head.weight", kind="param", rank=rank, frame="arrow")["step"].to_pylist()
        assert steps == [0, 1]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
