"""Values of all ranks come together on rank 0, in the shapes that are documented; none is lost
because another rank traces less, or dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from traced_rank import B, C, N

import sonde
from sonde.tracing import hdf5

SCRIPT = Path(__file__).with_name("traced_rank.py")


def launch(folder, names, world):
    """The exit code of each rank; output of those that failed is shown."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, names, str(rank), str(world), folder],
            env=environment,
            stdout=(folder / f"log-{rank}").open("wb"),
            stderr=subprocess.STDOUT,
        )
        for rank in range(world)
    ]
    try:
        codes = [rank.wait(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for n, code in enumerate(codes):
        if code:
            print(f"rank {n}: {(folder / f'log-{n}').read_text()}")
    return codes


def found(folder, name, rank):
    return torch.load(folder / f"{name}-{rank}.pt", weights_only=False)


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    world = request.param
    assert launch(folder, "stacked,file,mean,tail,run", world) == [0] * world
    return folder, world


def test_the_first_example_has_shape_n_over_g_w_g_b_c(trained):
    folder, world = trained
    iterations, ranks, values = found(folder, "stacked", 0)["trace"]["forward.x"]
    x = values[0]
    assert len(values) == 1
    assert x.shape == (N // 4, world, 4, B, C)
    assert iterations == [4 * w + i for w in range(N // 4) for _ in range(world) for i in range(4)]
    assert ranks == [r for _ in range(N // 4) for r in range(world) for _ in range(4)]
    for rank in range(world):
        seen = found(folder, "stacked", rank)["seen"]
        assert torch.equal(x[:, rank].reshape(N, B, C), seen)
    output = found(folder, "stacked", 0)["trace"]["forward"][2][0]
    assert output.shape == (N // 4, world, 4, B, C)
    assert output.abs().max() < 1
    for rank in range(1, world):
        assert found(folder, "stacked", rank)["trace"] == {}


def test_the_second_example_fills_a_file_of_shape_n_over_g_gw_b_c(trained):
    import h5py

    folder, world = trained
    with h5py.File(folder / "values" / "test.h5") as f:
        assert f["forward.x"].shape == f["forward"].shape == (N // 2, 2 * world, B, C)
        assert f["forward.x"].dtype == "float32"
        assert f["forward.x_iterations"].shape == f["forward.x_ranks"].shape == (N * world,)
        x, iterations = f["forward.x"][:], f["forward.x_iterations"][:]
        ranks = f["forward.x_ranks"][:]
    flat = torch.from_numpy(x).reshape(N * world, B, C)
    for rank in range(world):
        seen = found(folder, "file", rank)["seen"]
        assert iterations[ranks == rank].tolist() == list(range(N))
        assert torch.equal(flat[torch.from_numpy(ranks == rank)], seen)
    assert found(folder, "file", 0)["trace"] == {}


def test_the_third_example_has_shape_n_over_g_c(trained):
    folder, world = trained
    _, _, values = found(folder, "mean", 0)["trace"]["forward.x"]
    assert values[0].shape == (N // 4, C)
    seen = torch.stack([found(folder, "mean", rank)["seen"] for rank in range(world)])
    expected = seen.reshape(world, N // 4, 4, B, C).mean(dim=(0, 2, 3))
    torch.testing.assert_close(values[0], expected)


def test_the_last_window_is_kept_and_ranks_may_differ_in_what_they_trace(trained):
    folder, world = trained
    iterations, ranks, values = found(folder, "tail", 0)["trace"]["forward.x"]
    own = [[0, 1, 2, 3], [4, 5]]
    others = [[0, 2], [4]]
    if world == 1:
        assert (iterations, ranks) == (list(range(6)), [0] * 6)
    else:
        assert iterations == own[0] + others[0] + own[1] + others[1]
        assert ranks == [0] * 4 + [1] * 2 + [0] * 2 + [1]
    for i, rank, value in zip(iterations, ranks, values, strict=True):
        assert torch.equal(value, found(folder, "tail", rank)["seen"][i])
    simple = found(folder, "tail", 0)["trace"]["forward.self.fc.in_features"]
    assert simple == ([0] * world, list(range(world)), [C] * world)


def test_without_communication_each_rank_writes_into_one_run(trained):
    folder, world = trained
    with sonde.open(folder / "run") as run:
        q = run.trace("forward.q")
        assert q.iterations == [i for i in range(4) for _ in range(world)]
        assert q.ranks == [r for _ in range(4) for r in range(world)]
        for rank in range(world):
            assert run.trace("fc", rank=rank).iterations == [0, 1, 2, 3]
        merged = run.sketch("./local/forward.q", step=3)
        assert merged.count == world * B * C
        expected = sum(float(v.sum()) for v in run.trace("forward.q", steps=3).values)
        assert merged.sum == pytest.approx(expected, rel=1e-5)
    assert found(folder, "run", 0)["trace"] == {}


def test_one_rank_traces_less_one_nothing_one_is_killed_and_the_others_finish(tmp_path):
    assert launch(tmp_path, "lost", 4) == [0, 0, -signal.SIGKILL, 0]
    results = found(tmp_path, "lost", 0)
    iterations, ranks, values = results["trace"]["forward.x"]
    got = {r: [i for i, rank in zip(iterations, ranks, strict=True) if rank == r] for r in range(4)}
    assert got[0] == list(range(N))
    assert got[1] == list(range(8))
    assert got[2] == list(range(8))[: len(got[2])]
    assert len(got[2]) >= 6
    assert got[3] == []
    for i, rank, value in zip(iterations, ranks, values, strict=True):
        if rank != 2:
            assert torch.equal(value, found(tmp_path, "lost", rank)["seen"][i])
    said = " ".join(results["said"])
    assert "Rank 2, 3 did not end its trace within 2 s" in said
    written = hdf5.read(tmp_path / "lost.h5", "forward.x")
    assert sorted(zip(written.iterations, written.ranks, strict=True)) == sorted(
        zip(iterations, ranks, strict=True)
    )
