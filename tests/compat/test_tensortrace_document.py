"""The code blocks of TensorTracer's README, on the drop-in: same calls, checked results.

Each is run in one process and in two (`tensortrace_rank.py`).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("tensortrace_rank.py")
N, B, C = 16, 3, 5


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def ran(request, tmp_path_factory):
    """How many ranks there were, their folder, and what each found."""
    folder, world = tmp_path_factory.mktemp("tensortrace"), request.param
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), str(world)], env=environment, cwd=folder
        )
        for rank in range(world)
    ]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    found = [torch.load(folder / f"found-{r}.pt", weights_only=False) for r in range(world)]
    return world, folder, found


def test_tensortracer_usage_values_of_all_ranks(ran):
    world, _, found = ran
    iterations, ranks, values = found[0]["first"]["results"]["forward.x"]
    x = values[0]
    assert x.shape == (N // 4, world, 4, B, C)
    assert sorted(set(iterations)) == list(range(1, N + 1))
    assert len(iterations) == len(ranks) == N * world
    for rank in range(world):
        assert torch.equal(x[:, rank].reshape(N, B, C), found[rank]["first"]["seen"])
    assert found[0]["first"]["results"]["forward"][2][0].shape == x.shape
    assert all(other["first"]["results"] == {} for other in found[1:])


def test_tensortracer_usage_h5py_saver_callback(ran):
    h5py = pytest.importorskip("h5py")
    world, folder, found = ran
    with h5py.File(folder / "test.h5") as file:
        x = file["forward.x"]
        assert x.shape == file["forward"].shape == (N // 2, 2 * world, B, C)
        assert found[0]["second"]["shape"] == x.shape
        assert x.dtype == "float32"
        windows = torch.tensor(x[:]).view(N // 2, world, 2, B, C)
        for rank in range(world):
            seen = found[rank]["second"]["seen"].view(N // 2, 2, B, C)
            assert torch.equal(windows[:, rank], seen)
        ranks = file["forward.x_ranks"][:].tolist()
        assert ranks == [r for _ in range(N // 2) for r in range(world) for _ in range(2)]
        assert len(file["forward.x_iterations"]) == N * world
    assert all(values == [] for _, _, values in found[0]["second"]["results"].values())


def test_tensortracer_usage_mean_over_ranks_and_batches(ran):
    world, _, found = ran
    x = found[0]["third"]["results"]["forward.x"][2][0]
    assert x.shape == (N // 4, C)
    seen = torch.stack([each["third"]["seen"] for each in found]).view(world, N // 4, 4, B, C)
    # The callback takes the mean over values of the window and over the batch.
    assert torch.allclose(x, seen.mean(dim=(0, 2, 3)))


def test_the_last_window_is_kept_and_paths_need_no_name_of_a_wrapper(ran):
    world, _, found = ran
    iterations, ranks, values = found[0]["plain"]["results"]["forward.x"]
    windows = [range(first, min(first + 3, N + 1)) for first in range(1, N + 1, 3)]
    assert iterations == [i for window in windows for _ in range(world) for i in window]
    assert ranks == [r for window in windows for r in range(world) for _ in window]
    assert len(values) == N * world
    assert found[0]["plain"]["current_iteration"] == N


def test_values_of_other_ranks_are_not_unpickled(ran):
    world, folder, found = ran
    assert not list(folder.glob("unpickled-by-*"))
    assert len(found[0]["foreign"]["results"]["forward"][2]) == world
