"""Runs of large and odd models, written record by record: a model of 80 layers in a second."""

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import NormalDist

import numpy as np

from sonde.graph.model import node_id
from sonde.kernels.reference import sketch
from sonde.record import (
    CallPort,
    GraphEdge,
    GraphModule,
    GraphNode,
    GraphPart,
    NumberBatch,
    Site,
    SiteInfo,
    SketchBatch,
)
from sonde.sketch import concatenate
from sonde.store import Writer

NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 8192) for i in range(8192)])
PORT = (CallPort("0", "float32", (4, 8)),)
CONTAINERS = ("ModuleList", "ModuleDict")
KINDS = ("output", "param", "param_grad")
HOSTILE = ("__proto__", "constructor", "toString", "hasOwnProperty", "valueOf", "length")

Modules = dict[str, str]
"""Types of modules by their path, parents first."""

Size = Callable[[Site, int], float]
"""The deviation of a site's values at a step; NaN makes some values NaN."""


# -- models ---------------------------------------------------------------------------------------


def llama(layers: int = 80) -> Modules:
    """The modules of a Llama with as many layers, as transformers names them."""
    made = {
        "": "LlamaForCausalLM",
        "model": "LlamaModel",
        "model.embed_tokens": "Embedding",
        "model.layers": "ModuleList",
    }
    for i in range(layers):
        layer = f"model.layers.{i}"
        made |= {
            layer: "LlamaDecoderLayer",
            f"{layer}.input_layernorm": "LlamaRMSNorm",
            f"{layer}.self_attn": "LlamaAttention",
            **{f"{layer}.self_attn.{n}_proj": "Linear" for n in "qkvo"},
            f"{layer}.post_attention_layernorm": "LlamaRMSNorm",
            f"{layer}.mlp": "LlamaMLP",
            **{f"{layer}.mlp.{n}_proj": "Linear" for n in ("gate", "up", "down")},
        }
    return made | {"model.norm": "LlamaRMSNorm", "lm_head": "Linear"}


def mlp(layers: int = 200) -> Modules:
    """One `nn.Sequential` of pairs of linear layers and activations."""
    made = {"": "Sequential"}
    for i in range(layers):
        made |= {f"{2 * i}": "Linear", f"{2 * i + 1}": "ReLU"}
    return made


def t5(layers: int = 6) -> Modules:
    """An encoder and a decoder whose embedding is one."""
    made = {"": "T5ForConditionalGeneration", "shared": "Embedding"}
    for side in ("encoder", "decoder"):
        made |= {side: "T5Stack", f"{side}.block": "ModuleList"}
        parts = ("SelfAttention", "EncDecAttention") if side == "decoder" else ("SelfAttention",)
        for i in range(layers):
            block = f"{side}.block.{i}"
            made |= {block: "T5Block", f"{block}.layer": "ModuleList"}
            for j, part in enumerate(parts):
                made |= {
                    f"{block}.layer.{j}": f"T5Layer{part}",
                    f"{block}.layer.{j}.{part}": "T5Attention",
                    **{f"{block}.layer.{j}.{part}.{n}": "Linear" for n in "qkvo"},
                }
            last = f"{block}.layer.{len(parts)}"
            made |= {last: "T5LayerFF", f"{last}.wi": "Linear", f"{last}.wo": "Linear"}
        made |= {f"{side}.final_layer_norm": "T5LayerNorm"}
    return made | {"lm_head": "Linear"}


def moe(layers: int = 4, experts: int = 8) -> Modules:
    """Layers of a router and experts, and a child that is named as the root is shown."""
    made = {"": "MoeForCausalLM", "model": "MoeModel", "model.layers": "ModuleList"}
    for i in range(layers):
        layer = f"model.layers.{i}"
        made |= {layer: "MoeLayer", f"{layer}.gate": "Linear", f"{layer}.experts": "ModuleList"}
        for e in range(experts):
            expert = f"{layer}.experts.{e}"
            made |= {expert: "Expert", f"{expert}.w1": "Linear", f"{expert}.w2": "Linear"}
    return made | {"lm_head": "Linear"}


def rnn() -> Modules:
    return {"": "Model", "cell": "RNNCell", "head": "Linear"}


def hostile() -> Modules:
    """Modules whose names are those of what every JavaScript object has."""
    made = {"": "Model"}
    for name in HOSTILE:
        made |= {name: "Block", f"{name}.constructor": "Linear"}
    return made


# -- records --------------------------------------------------------------------------------------


@functools.cache
def _columns(quarters: int, is_bad: bool = False):
    values = NORMAL * 2.0 ** (quarters / 4)
    if is_bad:
        values = np.where(np.arange(len(values)) % 5 == 0, np.nan, values)
    return sketch(values.astype(np.float32)).columns()


@functools.lru_cache(maxsize=64)
def columns(quarters: tuple[int | None, ...]):
    """Normal distributions whose deviations are these quarters of octaves; for None one with NaN.

    Many steps of a long run are alike, so those of some steps are kept.
    """
    return concatenate([_columns(0, True) if q is None else _columns(q) for q in quarters])


def quarters_of(size: float) -> int | None:
    return None if math.isnan(size) else round(4 * math.log2(size))


def sites_of(modules: Modules, kinds: Iterable[str] = KINDS, calls: int = 1) -> list[Site]:
    made = []
    for path, kind in modules.items():
        if kind in CONTAINERS:
            continue
        if "output" in kinds:
            n = calls if kind == "RNNCell" else 1
            made += [Site(path, "output", call) for call in range(n)]
        for wanted in ("param", "param_grad"):
            if wanted in kinds and kind in {"Linear", "Embedding", "RNNCell"}:
                made += [Site(path, wanted, 0, slot) for slot in ("weight", "bias")]
    return made


def graph_of(modules: Modules, calls: int = 1) -> GraphPart:
    """Each called module inside the next called one above it, in a chain in their order."""
    nodes, edges, last = [], [], {}
    for path, kind in modules.items():
        if kind in CONTAINERS:
            continue
        above = path
        while above:
            above = above.rpartition(".")[0]
            if modules.get(above, "ModuleList") not in CONTAINERS:
                break
        parent = node_id(above, 0) if path else ""
        for call in range(calls if kind == "RNNCell" else 1):
            made = node_id(path, call)
            nodes.append(GraphNode(made, path, call, "module", parent, PORT, PORT, 3))
            if parent in last:
                edges.append(GraphEdge(last[parent], made, 3))
            last[parent] = made
    described = [
        GraphModule(path, kind, "8, 8" if kind == "Linear" else "", 72 if kind == "Linear" else 0)
        for path, kind in modules.items()
    ]
    return GraphPart(0, described, nodes, edges, 3)


def steady(site: Site, step: int) -> float:
    """A size of its own for each site, which falls a little."""
    return 2.0 ** (_of_name(site.name) % 9 - 4) / (1 + step / 20)


@functools.cache
def _of_name(name: str) -> int:
    return sum(map(ord, name))


def write(
    path: Path,
    modules: Modules,
    *,
    steps: Iterable[int] = range(12),
    kinds: Iterable[str] = KINDS,
    size: Size = steady,
    calls: int = 1,
    loss: Callable[[int], float] = lambda step: 3 / (1 + step),
    validated: Iterable[int] = (),
    tied: Iterable[str] = (),
    frozen: Iterable[str] = (),
    about: Mapping[str, object] | None = None,
    is_killed: bool = False,
) -> Path:
    """A run of these modules. One that is killed ends without a word, with this process.

    Modules that are tied have no parameters of their own: another one owns them. Those that are
    frozen have no gradients. `about` is the configuration that the run holds.
    """
    without = {"param": {*tied}, "param_grad": {*tied, *frozen}}
    sites = [s for s in sites_of(modules, kinds, calls) if s.module not in without.get(s.kind, ())]
    ids = np.arange(len(sites), dtype=np.int32)
    with Writer(path, compact=False, config=dict(about or {})) as writer:
        writer.sites(
            [SiteInfo(i, s, "float32", (4, 8), modules[s.module]) for i, s in enumerate(sites)]
        )
        writer.graph(graph_of(modules, calls))
        for step in steps:
            made = columns(tuple(quarters_of(size(site, step)) for site in sites))
            writer.sketches(SketchBatch(step, "train", ids, made))
            phases = ("train", "validation") if step in validated else ("train",)
            for phase in phases:
                values = np.array([loss(step)])
                writer.numbers(NumberBatch(step, phase, ["loss"], [None], values))
            if step % 100 == 99:
                writer.flush(120.0)  # no training waits here, and a full writer drops records
        assert writer.flush(120.0)
        assert writer.counts.dropped == {}
        if is_killed:
            os._exit(9)
    return path


def diverging(site: Site, step: int) -> float:
    """Well for 44 steps, then larger by a factor of a hundred each step."""
    return steady(site, 0) * 100.0 ** max(0, step - 43)


def breaking(site: Site, step: int) -> float:
    """NaN in the gate of one layer from step 8 on."""
    is_bad = site.module == "model.layers.1.gate" and step >= 8
    return float("nan") if is_bad else steady(site, step)


def whispering(site: Site, step: int) -> float:
    """Steady, but for one module that moves by twenty octaves far below all normal numbers."""
    if site.module == "lm_head":
        return 2.0 ** (-148 + min(step, 10) * 2)
    return steady(site, step)


def write_all(folder: Path) -> None:
    """One run of each kind, named after what it shows."""
    write(folder / "llama80", llama())
    write(folder / "mlp200", mlp())
    write(folder / "rnn50", rnn(), calls=50)
    write(folder / "t5", t5())
    write(folder / "moe", moe())
    write(folder / "hostile", hostile())
    write(folder / "empty", rnn(), steps=())
    write(folder / "diverged", moe(2, 2), steps=range(50), size=diverging)
    write(folder / "broken", moe(2, 2), size=breaking, validated=(5, 10))
    write(folder / "normal", rnn(), size=lambda _site, _step: 1.0, steps=range(40))
    write(folder / "irregular", moe(2, 2), steps=[*range(6), *range(12, 50, 7)])
    write(folder / "tied", moe(2, 2), tied=("lm_head",))
    write(folder / "frozen", moe(2, 2), frozen=("lm_head",))
    write(folder / "gradients", moe(2, 2), kinds=("output", "param_grad"), frozen=("lm_head",))
    narrow = {"watch": {"exclude": ["lm_head"]}}
    write(folder / "narrow", moe(2, 2), tied=("lm_head",), about=narrow)
    write(folder / "subnormal", moe(2, 2), size=whispering)
    write(folder / "twin-a", moe(2, 2), steps=range(0, 40, 2))
    write(folder / "twin-b", moe(2, 2), steps=range(0, 60, 5), loss=lambda step: 2 / (1 + step))
    killed = [sys.executable, __file__, str(folder / "killed")]
    assert subprocess.run(killed, check=False).returncode == 9


if __name__ == "__main__":
    write(Path(sys.argv[1]), rnn(), is_killed=True)
