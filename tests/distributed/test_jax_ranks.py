"""Two real processes of JAX train together: each writes what it holds, and the run is the whole."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jax_ranks import STEPS, train

import sonde

SCRIPT = Path(__file__).with_name("jax_ranks.py")
WORLD = 2


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    address = free_address()
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, folder, address, str(rank), str(WORLD)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    for rank, text in zip(ranks, texts, strict=True):
        assert rank.returncode == 0, text[-4000:]
    return folder


def test_the_run_of_all_processes_has_the_statistics_of_one(folder, tmp_path, memory):
    train(tmp_path, memory)
    run, alone = sonde.open(folder / "run"), sonde.open(tmp_path / "run")
    assert run.steps == alone.steps == list(range(STEPS))
    assert sorted(run.sites) == sorted(alone.sites)
    for step in range(STEPS):
        for name, expected in memory.at(step).items():
            found = run.sketch(site=name, step=step)
            assert found.count == expected.count, name
            assert found.rms == pytest.approx(expected.rms, rel=1e-5), name
            assert found.max == pytest.approx(expected.max, rel=1e-5), name


def test_each_process_writes_the_parts_that_it_holds(folder):
    run = sonde.open(folder / "run")
    rows = run.sql(
        "select rank, sum(count) as n from records where kind = 'param' and step = 0 "
        "and phase = 'train' group by rank order by rank",
        frame="arrow",
    ).to_pylist()
    assert [(row["rank"], row["n"]) for row in rows] == [(0, 8), (1, 8)]


def test_metrics_are_those_of_the_whole_array(folder):
    run = sonde.open(folder / "run")
    rows = run.metrics(frame="arrow").to_pylist()
    found = {row["value"] for row in rows if row["name"].endswith("norm") and row["module"] == ""}
    assert len(found) >= 1
    assert all(np.isfinite(list(found)))
