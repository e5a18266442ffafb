"""Is watched training the same to the bit? Losses and weights after some steps, each case twice.

Every case trains the same model from the same state on the same batches: unwatched, unwatched
again, and watched at several cadences. The second unwatched run is the control: where it differs
from the first, the training is not deterministic by itself. Deterministic
algorithms are on. Compiled cases run with and without `emulate_precision_casts`, an option of the
code generator that rounds between fused operations as eager mode does.

    python benchmarks/gpu_identity.py [--steps 8] [--device cuda] [--case NAME] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import sonde

BATCH, CONTEXT, VOCABULARY, WIDTH, HEADS, LAYERS = 4, 128, 512, 256, 4, 3
SCHEDULES: dict[str, Any] = {
    "unwatched": None,
    "unwatched again": None,
    "never due": lambda _step: False,
    "every 4": 4,
    "every 1": 1,
}
COLUMNS = (
    *("model", "mode", "precision", "emulate_casts", "variant", "steps", "first_difference"),
    *("loss_difference", "weights_differing", "weights", "largest_weight_difference", "seconds"),
    *("date", "device", "torch", "sonde"),
)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = Norm(), Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.act = nn.SiLU()

    def forward(self, x):
        y = self.before(x)
        heads = (
            each(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        y = self.between(x)
        return x + self.down(self.act(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """For machines without transformers: the same layers, without rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Unit(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)
        )
        self.one, self.two = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(x + self.two(self.second(self.act(self.one(self.first(x))))))


class Resnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, stride=2, padding=1)
        self.units = nn.Sequential(*(Unit(64) for _ in range(3)))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.units(self.stem(x)).mean((2, 3)))


def llama() -> nn.Module:
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return Llama()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


@dataclass(frozen=True)
class Case:
    """A model, how it is run, and in which precision."""

    model: str
    mode: str
    precision: str
    emulates: bool = False

    @property
    def name(self) -> str:
        return f"{self.model} {self.mode} {self.precision}{' casts' if self.emulates else ''}"


CASES = (
    Case("llama", "compiled", "bf16"),
    Case("llama", "compiled", "bf16", emulates=True),
    Case("resnet", "compiled", "fp16"),
    Case("llama", "compiled", "fp32"),
    Case("llama", "eager", "bf16"),
    Case("resnet", "eager", "fp16"),
    Case("llama", "eager", "fp32"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--case", action="append", help="default: all", choices=[c.name for c in CASES]
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for case in CASES:
        if options.case is None or case.name in options.case:
            for row in compare(case, options.steps, options.device):
                rows.append(row)
                print(
                    f"{case.name:26} {row['variant']:16} loss {row['loss_difference']:.3g}  "
                    f"weights {row['weights_differing']} of {row['weights']} (by "
                    f"{row['largest_weight_difference']:.3g})  first at step "
                    f"{row['first_difference']}  {row['seconds']:.1f} s",
                    flush=True,
                )
            with (options.out / "gpu-identity.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


def compare(case: Case, steps: int, device: str) -> Iterator[dict[str, Any]]:
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    about = {"date": dt.datetime.now(dt.UTC).date(), "device": name, "torch": torch.__version__}
    about |= {"sonde": sonde.__version__, "model": case.model, "mode": case.mode}
    about |= {"precision": case.precision, "emulate_casts": case.emulates, "steps": steps}
    reference: tuple[list[float], dict[str, torch.Tensor]] | None = None
    for variant, every in SCHEDULES.items():
        began = time.perf_counter()
        losses, weights = train(case, steps, device, every)
        if reference is None:
            reference = losses, weights
        apart = [abs(a - b) for a, b in zip(losses, reference[0], strict=True)]
        differences = [
            (weights[k].double() - w.double()).abs().max() for k, w in reference[1].items()
        ]
        yield about | {
            "variant": variant,
            "first_difference": next((i for i, d in enumerate(apart) if d), ""),
            "loss_difference": max(apart),
            "weights_differing": sum(bool(d) for d in differences),
            "weights": len(differences),
            "largest_weight_difference": float(max(differences)),
            "seconds": time.perf_counter() - began,
        }


def train(
    case: Case, steps: int, device: str, every: Any
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final weights."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = (llama() if case.model == "llama" else Resnet()).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=case.precision == "fp16")
    batches = [batch(case, seed, device) for seed in range(steps)]
    losses = []
    with tempfile.TemporaryDirectory() as folder, generating(case):
        watch = None
        if every is not None:
            watch = sonde.watch(model, optimizer, log="all", every=every, dir=folder)
        call = torch.compile(model) if case.mode == "compiled" else model
        for inputs, labels in batches:
            with autocast(case, device):
                out = call(inputs)
                out = getattr(out, "logits", out)
                loss = functional.cross_entropy(out.float().flatten(0, -2), labels.flatten())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.detach())
        if watch is not None:
            watch.close()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return [float(loss) for loss in losses], weights


def batch(case: Case, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    if case.model == "resnet":
        images = torch.randn(16, 3, 32, 32, generator=chance)
        return images.to(device), torch.randint(10, (16,), generator=chance).to(device)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=chance).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def autocast(case: Case, device: str) -> torch.autocast:
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.precision)
    return torch.autocast(device, narrow, enabled=narrow is not None)


@contextmanager
def generating(case: Case) -> Iterator[None]:
    """The options of the code generator that the case asks for."""
    if not case.emulates:
        yield
        return
    from torch._inductor import config

    with config.patch(emulate_precision_casts=True):
        yield


if __name__ == "__main__":
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    main()
