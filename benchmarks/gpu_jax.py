"""Step time and memory of a GPT-2-small-shaped nnx model in JAX: plain and recorded.

    python benchmarks/gpu_jax.py            # on a GPU
    python benchmarks/gpu_jax.py --small    # a small shape, for the CPU

All default kinds. Rounds of the cases are interleaved; a case is the median of its rounds, relative
to the plain step of the same run. `taps` is a recorded step whose kernel reads nothing: what the
compiler loses where values have to be materialised, apart from what the kernel takes.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import sonde
from sonde.kernels import jax as kernels


class Shape:
    def __init__(self, small):
        self.batch, self.length = (2, 64) if small else (8, 1024)
        self.width, self.heads, self.layers = (64, 4, 2) if small else (768, 12, 12)
        self.words = 512 if small else 50304
        self.dtype = jnp.float32 if small else jnp.bfloat16
        self.attention = None if small else "cudnn"


class Attention(nnx.Module):
    def __init__(self, s, rngs):
        self.qkv = nnx.Linear(s.width, 3 * s.width, dtype=s.dtype, rngs=rngs)
        self.out = nnx.Linear(s.width, s.width, dtype=s.dtype, rngs=rngs)
        self.heads, self.how = s.heads, s.attention

    def __call__(self, x):
        parts = jnp.split(self.qkv(x), 3, -1)
        q, k, v = (p.reshape(*p.shape[:2], self.heads, -1) for p in parts)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=self.how)
        return self.out(y.reshape(x.shape))


class Mlp(nnx.Module):
    def __init__(self, s, rngs):
        self.up = nnx.Linear(s.width, 4 * s.width, dtype=s.dtype, rngs=rngs)
        self.down = nnx.Linear(4 * s.width, s.width, dtype=s.dtype, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.gelu(self.up(x)))


class Block(nnx.Module):
    def __init__(self, s, rngs):
        self.ln1 = nnx.LayerNorm(s.width, dtype=s.dtype, rngs=rngs)
        self.attn = Attention(s, rngs)
        self.ln2 = nnx.LayerNorm(s.width, dtype=s.dtype, rngs=rngs)
        self.mlp = Mlp(s, rngs)

    def __call__(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nnx.Module):
    def __init__(self, s, rngs):
        self.wte = nnx.Embed(s.words, s.width, dtype=s.dtype, rngs=rngs)
        self.wpe = nnx.Embed(s.length, s.width, dtype=s.dtype, rngs=rngs)
        self.h = nnx.List([Block(s, rngs) for _ in range(s.layers)])
        self.ln_f = nnx.LayerNorm(s.width, dtype=s.dtype, rngs=rngs)
        self.head = nnx.Linear(s.width, s.words, use_bias=False, dtype=s.dtype, rngs=rngs)

    def __call__(self, tokens):
        x = self.wte(tokens) + self.wpe(jnp.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def step_of(graph, tx):
    """A training step over arrays: `nnx.jit` would spend longer on the host than the GPU does."""

    def train_step(params, state, tokens, targets):
        def loss(params):
            logits = nnx.merge(graph, params)(tokens).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return train_step


def materialised(*arrays, kernel):
    """Rows of nothing, after the arrays have been written to memory."""
    arrays = jax.lax.optimization_barrier(arrays)
    some = [x.reshape(-1)[:1].astype(jnp.float32) for x in arrays]
    row = jnp.zeros((len(arrays), kernels.ROW), jnp.uint32)
    return row + (jnp.stack(some) * 0).astype(jnp.uint32)


def peak():
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use", 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out")
    options = parser.parse_args()
    shape = Shape(options.small)
    graph, params = nnx.split(Gpt(shape, nnx.Rngs(0)))
    tx = optax.adamw(1e-4)
    held = [params, jax.jit(tx.init)(params)]
    del params
    keys = jax.random.split(jax.random.key(1))
    size = (shape.batch, shape.length)
    tokens, targets = (jax.random.randint(k, size, 0, shape.words) for k in keys)
    plain = jax.jit(step_of(graph, tx), donate_argnums=(0, 1))
    found = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}

    def run(step, n):
        began = time.perf_counter()
        for _ in range(n):
            held[0], held[1], loss = step(*held, tokens, targets)
        jax.block_until_ready((loss, held))
        return (time.perf_counter() - began) / n * 1e3

    def first(name, step):
        began = time.perf_counter()
        run(step, 1)
        found[f"{name}_first_step_s"] = round(time.perf_counter() - began, 1)
        print(name, "compiled", found[f"{name}_first_step_s"], "s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        cases = {"plain": plain}
        first("plain", plain)
        run(plain, 5)
        found["plain_peak_bytes"] = peak()
        watches, models = {}, {}

        def watched(name, every):
            models[name] = nnx.eval_shape(lambda: Gpt(shape, nnx.Rngs(0)))  # a watch has its own
            watches[name] = watch = sonde.watch(
                models[name], dir=Path(folder), name=name, every=every, final_parameters=False
            )
            step = step_of(graph, watch.optimizer(tx))
            cases[name] = watch.wrap(jax.jit(step, donate_argnums=(0, 1)))

        watched("every_step", 1)
        first("every_step", cases["every_step"])
        run(cases["every_step"], 5)
        found["recorded_peak_bytes"] = peak()
        found["sites"] = len(watches["every_step"].metrics(stats="rms"))
        watched("every_tenth", 10)
        watched("never", lambda step: step == -1)
        real, kernels.sketch = kernels.sketch, materialised
        watched("taps", 1)
        first("taps", cases["taps"])
        kernels.sketch = real
        first("every_tenth", cases["every_tenth"])
        run(cases["every_tenth"], 9)
        times = {name: [] for name in cases}
        for i in range(options.rounds + 1):
            for name, step in cases.items():
                taken = run(step, options.steps)
                if name in watches:  # what it does in the background is not of the next block
                    watches[name].flush()
                if i:  # the first round compiles what is left to compile
                    times[name].append(taken)
        for name, watch in watches.items():
            watch.flush()
            info = sonde.open(watch.path).info
            found[f"{name}_dropped"] = info.get("dropped_steps")
            watch.close()
    base = statistics.median(times["plain"])
    for name, values in times.items():
        ratios = [v / p for v, p in zip(values, times["plain"], strict=True)]
        found[name] = {
            "ms": round(statistics.median(values), 3),
            "ratio": round(statistics.median(ratios), 4),
            "ratios": [round(r, 4) for r in ratios],
        }
    found["memory_ratio"] = round(
        found["recorded_peak_bytes"] / max(found["plain_peak_bytes"], 1), 4
    )
    found["plain_ms"] = round(base, 3)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        Path(options.out).write_text(text)


if __name__ == "__main__":
    main()
