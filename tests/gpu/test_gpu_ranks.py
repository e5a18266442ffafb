"""Ranks on NCCL: one GPU, one rank, the real collectives."""

import pytest
import torch
import torch.distributed as dist

import sonde

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.fixture
def mesh(monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    yield dist.init_device_mesh("cuda", (1,), mesh_dim_names=("dp",))
    dist.destroy_process_group()


def wrapped(kind, model, mesh):
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_rank_on_nccl_records_what_one_process_does(kind, mesh, tmp_path):
    counts = {}
    for name in ("alone", kind):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
        model = model.cuda() if name == "alone" else wrapped(kind, model.cuda(), mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)).cuda()
        with sonde.watch(model, optimizer, dir=tmp_path, name=name, every=1):
            for _ in range(3):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        run = sonde.open(tmp_path / name)
        rows = run.stats(kind=["param", "param_grad", "update"], stat=["count", "rms"])
        counts[name] = rows.sort_values(["step", "name"])
        assert run.damaged == []
    alone, ranked = counts["alone"], counts[kind]
    assert list(alone["name"]) == list(ranked["name"])
    assert list(alone["count"]) == list(ranked["count"])
    assert ranked["rms"].to_numpy() == pytest.approx(alone["rms"].to_numpy(), rel=1e-4)
