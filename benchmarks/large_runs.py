"""Runs of the shape of large models, and a server for them: what `views.py` and `page.py` measure.

The transformer has the shape of one of 70 B parameters: 80 blocks, 1,046 modules, outputs and
gradients of parameters (1,769 sites), 2,000 steps: 3.5 million sketches. The mixture of experts has
78,754 modules. All goes through the real writer.
"""

from __future__ import annotations

import csv
import http.client
import json
import os
import platform
import re
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil

from sonde._version import VERSION
from sonde.graph.model import node_id
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
    Sketches,
)
from sonde.store import Writer
from sonde.store.writing.compaction import compact

Figure = tuple[str, float, str]
"""What was measured, how much, and of what."""

RESULTS = Path(__file__).parent / "results"
BINS = 44

BLOCK = {
    "": "LlamaDecoderLayer",
    "input_layernorm": "LlamaRMSNorm",
    "self_attn": "LlamaAttention",
    "self_attn.q_proj": "Linear",
    "self_attn.k_proj": "Linear",
    "self_attn.v_proj": "Linear",
    "self_attn.o_proj": "Linear",
    "post_attention_layernorm": "LlamaRMSNorm",
    "mlp": "LlamaMLP",
    "mlp.gate_proj": "Linear",
    "mlp.up_proj": "Linear",
    "mlp.act_fn": "SiLUActivation",
    "mlp.down_proj": "Linear",
}


def transformer(blocks: int) -> dict[str, str]:
    """Paths and types of the modules."""
    found = {
        "": "LlamaForCausalLM",
        "model": "LlamaModel",
        "model.embed_tokens": "Embedding",
        "model.rotary_emb": "LlamaRotaryEmbedding",
    }
    for i in range(blocks):
        for name, kind in BLOCK.items():
            found[f"model.layers.{i}" + (f".{name}" if name else "")] = kind
    return {**found, "model.norm": "LlamaRMSNorm", "lm_head": "Linear"}


def graph_of(modules: dict[str, str]) -> GraphPart:
    """Calls inside calls, each joined to the next beside it."""
    port = (CallPort("0", "bfloat16", (8, 1024, 8192)),)
    called = [p for p in modules if not p.endswith(("layers", "experts"))]
    known = set(called)
    nodes, edges, last = [], [], {}
    for path in called:
        above = path
        while above and (above == path or above not in known):
            above = above.rpartition(".")[0]
        parent = node_id(above, 0) if path else ""
        node = node_id(path, 0)
        nodes.append(GraphNode(node, path, 0, "module", parent, port, port, 2000))
        if parent in last:
            edges.append(GraphEdge(last[parent], node, 2000))
        last[parent] = node
    described = [GraphModule(p, t, "in_features=8192, bias=False", 4) for p, t in modules.items()]
    return GraphPart(0, described, nodes, edges, 2000)


class Source:
    """Sketches of all sites of a step; scales differ by site and drift with the step."""

    def __init__(self, sites: int) -> None:
        rng = np.random.default_rng(0)
        self.scale = rng.uniform(-12, 2, sites)
        self.speed = rng.normal(0, 1.5, sites)
        shape = np.exp(-0.5 * ((np.arange(BINS // 2) - 15) / 5.0) ** 2)
        self.shape = np.concatenate([shape, shape])
        self.offsets = np.arange(0, (sites + 1) * BINS, BINS, dtype=np.int64)
        self.rng = rng

    def batch(self, step: int, steps: int) -> SketchBatch:
        n = len(self.scale)
        exponent = self.scale + self.speed * step / steps + self.rng.normal(0, 0.1, n)
        first = (4 * (exponent.astype(np.int64) + 127)).clip(8, 960)
        base = np.concatenate([np.arange(BINS // 2), 1024 + np.arange(BINS // 2)])
        ids = (first[:, None] + base[None]).astype(np.int16)
        counts = (self.shape[None] * self.rng.uniform(900, 1100, (n, 1))).astype(np.int64) + 1
        rms = np.exp2(exponent)
        total = counts.sum(axis=1)
        columns = np.zeros((n, 6), np.int64)
        columns[:, 0] = total
        if step > steps * 3 // 4:
            columns[7, 2] = 3  # a site that goes wrong late
        sums = np.stack([total * 0.0, total * rms, total * rms**2, total * rms**4 * 3], axis=1)
        extrema = np.stack([-4 * rms, 4 * rms, rms / 1e4], axis=1)
        sketches = Sketches(columns, sums, extrema, self.offsets, ids.ravel(), counts.ravel())
        return SketchBatch(step, "train", np.arange(n, dtype=np.int32), sketches)


def make_transformer(path: Path, blocks: int, steps: int) -> int:
    """A run of outputs and gradients of parameters, through the real writer; how many sites."""
    modules = transformer(blocks)
    sites = [
        SiteInfo(0, Site(p, "output"), "bfloat16", (8, 1024, 8192), t) for p, t in modules.items()
    ]
    sites += [
        SiteInfo(0, Site(p, "param_grad", 0, "weight"), "float32", (8192, 8192), t)
        for p, t in modules.items()
        if t in {"Linear", "Embedding", "LlamaRMSNorm"}
    ]
    infos = [SiteInfo(i, s.site, s.dtype, s.shape, s.module_type) for i, s in enumerate(sites)]
    source = Source(len(infos))
    config = {"watch": {"model": "LlamaForCausalLM"}}
    with Writer(path, config=config, flush_s=60, max_pending_bytes=1 << 30) as writer:
        writer.sites(infos)
        writer.graph(graph_of(modules))
        for step in range(steps):
            writer.sketches(source.batch(step, steps))
            values = np.array([10 / (1 + step / 100), 3e-4])
            writer.numbers(NumberBatch(step, "train", ["loss", "lr"], [None, None], values))
            if step % 20 == 19:
                assert writer.flush(120)
    compact(str(path))
    return len(infos)


def experts(blocks: int = 61, experts: int = 256) -> dict[str, str]:
    """Paths and types of a mixture of experts: 78,754 modules."""
    modules = {"": "Moe", "model": "Model", "model.layers": "ModuleList"}
    for i in range(blocks):
        at = f"model.layers.{i}"
        modules |= {at: "Block", f"{at}.attn": "Attention", f"{at}.mlp": "Experts"}
        modules |= {f"{at}.attn.{n}": "Linear" for n in ("q", "k", "v", "o")}
        modules |= {f"{at}.norm_{n}": "RMSNorm" for n in (1, 2)}
        modules |= {f"{at}.mlp.gate": "Linear", f"{at}.mlp.experts": "ModuleList"}
        for j in range(experts):
            expert = f"{at}.mlp.experts.{j}"
            modules[expert] = "Expert"
            modules |= {f"{expert}.{n}": "Linear" for n in ("gate", "up", "down")}
            modules[f"{expert}.act"] = "SiLU"
    return modules


def make_experts(path: Path, modules: dict[str, str], steps: int = 20) -> float:
    """A run of that graph and the outputs of its blocks; the seconds to store the graph."""
    blocks = [m for m in modules if m.count(".") == 2]
    infos = [
        SiteInfo(i, Site(m, "output"), "bfloat16", (8, 1024, 8192), modules[m])
        for i, m in enumerate(blocks)
    ]
    source = Source(len(infos))
    with Writer(path, compact=False, flush_s=60) as writer:
        start = time.perf_counter()
        writer.graph(graph_of(modules))
        assert writer.flush(120)
        taken = time.perf_counter() - start
        writer.sites(infos)
        for step in range(steps):
            writer.sketches(source.batch(step, steps))
            value = np.array([10 / (1 + step)])
            writer.numbers(NumberBatch(step, "train", ["loss"], [None], value))
    return taken


class Served:
    """A server of its own process."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "sonde", "view", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--no-browser", "--no-token"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(r"http://([\d.]+):(\d+)/", line)
            if found:
                self.host, self.port = found[1], int(found[2])
                break
        self.connection = http.client.HTTPConnection(self.host, self.port, timeout=120)

    @property
    def base(self) -> str:
        return f"http://{self.host}:{self.port}/"

    def get(self, view: str, **question: object) -> bytes:
        query = urllib.parse.urlencode({k: v for k, v in question.items() if v is not None})
        self.connection.request("GET", f"/api/{view}?{query}")
        response = self.connection.getresponse()
        body = response.read()
        assert response.status == 200, (view, response.status, body[:300])
        return body

    def memory(self) -> int:
        """Resident bytes of the server and its workers; pages that they share count for each."""
        parent = psutil.Process(self.process.pid)
        return sum(p.memory_info().rss for p in (parent, *parent.children(recursive=True)))

    def cpu_s(self) -> float:
        """Processor time of the server and its workers so far: the same on a busy machine."""
        parent = psutil.Process(self.process.pid)
        times = [p.cpu_times() for p in (parent, *parent.children(recursive=True))]
        return sum(t.user + t.system for t in times)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def run_id(self) -> str:
        return json.loads(self.get("runs"))["spec"]["runs"][0]["id"]


def keep(figures: Iterable[Figure], out: Path) -> None:
    """Print figures as they come, and write them down at the end."""
    rows = []
    for figure, value, unit in figures:
        print(f"{figure:50} {value:10.3f} {unit}", flush=True)
        rows.append((figure, f"{value:.4g}", unit))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    day = datetime.now(UTC).date().isoformat()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("figure", "value", "unit", "machine", "date", "version"))
        lines.writerows((*row, machine, day, f"sonde {VERSION}") for row in rows)
