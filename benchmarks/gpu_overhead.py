"""What full capture costs on a GPU: a GPT-2-small training step, plain and watched, in one run.

The model and step of the field's usual comparison: 12 layers of width 768, batch 8 x 1024, bfloat16
autocast, fused AdamW. Watched: outputs, output gradients, parameters, their gradients, updates and
optimizer state. Variants take turns in rounds, so that a drift of the clock hits all alike.

The floor is what must be read once (the bytes of all distinct tensors captured in a step) over the
bandwidth of a device copy measured in the same run.

`ms` is the median over blocks of steps, `ms_low` the fastest block: what a shared machine does when
nobody else is on it. A step takes as long as the slower of two: the device with its work, the host
with handing it out. `device_ms` is the former alone, by events around a step that was handed out
while the device was kept busy; `host_ms` the latter, by the clock around a step for which the
device is idle.

`held_gib` is the device memory of a variant between steps: the model, its gradients and optimizer
state by the allocator's account, and the rows of a watch, which the driver gives. `peak_gib` adds
the most that a step takes besides.

    python benchmarks/gpu_overhead.py [--rounds 5] [--steps 20] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import sonde
from sonde.capture.torch import names
from sonde.capture.torch.compile import hooks as compiler

BATCH, CONTEXT, VOCABULARY, WIDTH, HEADS, LAYERS = 8, 1024, 50304, 768, 12, 12


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(c, 2)
        q, k, v = (y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU()
        self.proj = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.proj(self.act(self.fc(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln2 = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.lnf = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, i):
        x = self.wte(i) + self.wpe(torch.arange(i.shape[1], device=i.device))
        for block in self.h:
            x = block(x)
        return self.head(self.lnf(x))


class Variant:
    """A model with its optimizer, watched or not, that can run a step."""

    def __init__(self, name: str, every, *, compiled: bool, folder: str) -> None:
        self.name = name
        self.compiled = compiled
        self._before = torch.cuda.memory_allocated()
        self.held = 0.0
        torch.manual_seed(0)
        self.model = Gpt().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.watch = None
        if every is not None:
            self.watch = sonde.watch(
                self.model, self.optimizer, every=every, dir=folder, name=f"{name}-{compiled}"
            )
        self.forward = torch.compile(self.model, fullgraph=True) if compiled else self.model
        self.times: list[float] = []
        self.peak = 0.0

    def step(self, tokens, targets) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = self.forward(tokens)
        loss = nn.functional.cross_entropy(out.float().view(-1, VOCABULARY), targets.view(-1))
        loss.backward()
        self.optimizer.step()

    def warm_up(self, tokens, targets) -> None:
        """Steps that do not count; then all is there that stays."""
        self.measure(tokens, targets, 15)
        self.times.clear()
        self.peak = 0.0
        held = torch.cuda.memory_allocated() - self._before
        if self.watch is not None:
            held += self.watch._session.capture.recorder.memory["device_bytes"]
        self.held = held / 2**30

    def measure(self, tokens, targets, steps: int) -> None:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self.step(tokens, targets)
        torch.cuda.synchronize()
        self.times.append((time.perf_counter() - began) / steps * 1e3)
        passing = (torch.cuda.max_memory_allocated() - before) / 2**30
        self.peak = max(self.peak, self.held + passing)

    def apart(self, tokens, targets, times: int = 9) -> dict:
        """What a step takes on the device, and what it takes to hand it out."""
        device, host = [], []
        for _ in range(times):
            torch.cuda.synchronize()
            device.append(_timed(lambda: self.step(tokens, targets), 200_000_000) * 1e3)
            began = time.perf_counter()
            self.step(tokens, targets)
            host.append((time.perf_counter() - began) * 1e3)
        torch.cuda.synchronize()
        return {
            "device_ms": round(statistics.median(device), 3),
            "host_ms": round(statistics.median(host), 3),
        }

    def close(self) -> dict:
        if self.watch is None:
            return {}
        capture = self.watch._session.capture
        facts = {"dropped": capture.steps.dropped, "recorded": capture.steps.recorded}
        self.watch.close()
        return facts


def copy_bandwidth() -> float:
    """Bytes per second that a device copy reads and writes."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    times = [_timed(lambda: b.copy_(a)) for _ in range(12)]
    return 2 * a.numel() / statistics.median(times[2:])


def _timed(act: Callable[[], object], busy_cycles: int = 1_000_000) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(busy_cycles)
    first.record()
    act()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def captured_bytes(tokens, targets) -> int:
    """Bytes of all distinct tensors that a full capture has to read once."""
    variant = Variant("count", None, compiled=False, folder="")
    seen: dict[int, torch.Tensor] = {}
    total = 0

    def count(x: torch.Tensor) -> None:
        nonlocal total
        if id(x) not in seen:
            seen[id(x)] = x
            total += x.nbytes * (2 if x.requires_grad else 1)  # its gradient is as large

    hooks = [
        m.register_forward_hook(lambda _m, _a, out: count(out))
        for _, m in names.modules(variant.model)
    ]
    variant.step(tokens, targets)
    for hook in hooks:
        hook.remove()
    parameters = sum(p.nbytes for p in variant.model.parameters())
    # param, gradient, two states, and for the update the parameter before and after.
    return total + parameters * 6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--out", default="benchmarks/results")
    asked = parser.parse_args()
    tokens = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), device="cuda")
    targets = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), device="cuda")
    # Nothing in this model is written to in place, so older compilers trace the hooks too.
    compiler.TRACES_HOOKS = True
    bandwidth = copy_bandwidth()
    floor_ms = captured_bytes(tokens, targets) / bandwidth * 1e3
    torch.cuda.empty_cache()
    rows = []
    print(f"copy {bandwidth / 1e12:.2f} TB/s, floor {floor_ms:.2f} ms a step")
    with tempfile.TemporaryDirectory() as folder:
        for compiled in [mode == "compiled" for mode in asked.modes.split(",")]:
            cadences = {"plain": None, "every step": 1, "every 10th": 10, "off": lambda _: False}
            variants = []
            for name, every in cadences.items():
                variants.append(Variant(name, every, compiled=compiled, folder=folder))
                # So that steps that are due lie within a block, not where it begins: there the
                # device has nothing to do yet, and waits for the host.
                variants[-1].warm_up(tokens, targets)
            for _ in range(asked.rounds):
                for variant in variants:
                    variant.measure(tokens, targets, asked.steps)
            plain = variants[0]
            for variant in variants:
                ratios = [a / b for a, b in zip(variant.times, plain.times, strict=True)]
                added = statistics.median(
                    a - b for a, b in zip(variant.times, plain.times, strict=True)
                )
                row = {
                    "mode": "compiled" if compiled else "eager",
                    "variant": variant.name,
                    "ms": round(statistics.median(variant.times), 3),
                    "ms_low": round(min(variant.times), 3),
                    "ratio": round(statistics.median(ratios), 4),
                    "ratio_low": round(min(ratios), 4),
                    "ratio_high": round(max(ratios), 4),
                    "added_ms": round(added, 3),
                    "added_over_floor": round(added / floor_ms, 3),
                    "held_gib": round(variant.held, 3),
                    "peak_gib": round(variant.peak, 3),
                    "peak_ratio": round(variant.peak / plain.peak, 4),
                    **variant.apart(tokens, targets),
                    **variant.close(),
                }
                rows.append(row)
                print(row, flush=True)
            del variants, variant, plain
            torch.cuda.empty_cache()
    write(Path(asked.out) / "gpu-overhead.csv", rows, floor_ms=floor_ms, bandwidth=bandwidth)


def write(path: Path, rows: list[dict], **facts: float) -> None:
    common = {
        **{k: round(v, 4) for k, v in facts.items()},
        "device": torch.cuda.get_device_name(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "sonde": sonde.__version__,
        "torch": torch.__version__,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = list(dict.fromkeys(k for row in rows for k in (*row, *common)))
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, fields)
        out.writeheader()
        out.writerows({**row, **common} for row in rows)


if __name__ == "__main__":
    main()
