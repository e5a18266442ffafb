"""Small transformers in linen and nnx, and an oracle that knows nothing of taps.

The oracle adds a zero to what each module returns, and takes the gradient of the loss with respect
to these zeros.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

WIDTH, HEADS, LENGTH, WORDS = 8, 2, 5, 11


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x):
        attention = linen.MultiHeadDotProductAttention(HEADS, name="attn")
        x = x + attention(linen.LayerNorm(name="ln1")(x))
        y = linen.gelu(linen.Dense(2 * WIDTH, name="up")(linen.LayerNorm(name="ln2")(x)))
        return x + linen.Dense(WIDTH, name="down")(y)


class LinenTransformer(linen.Module):
    layers: int = 2

    @linen.compact
    def __call__(self, tokens):
        x = linen.Embed(WORDS, WIDTH, name="embed")(tokens)
        for i in range(self.layers):
            x = LinenBlock(name=f"h{i}")(x)
        return linen.Dense(WORDS, name="head")(linen.LayerNorm(name="norm")(x))


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        self.ln1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.ln2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.down(nnx.gelu(self.up(self.ln2(x))))


class NnxTransformer(nnx.Module):
    def __init__(self, rngs, layers=2):
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.h = nnx.List([NnxBlock(rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, WORDS, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


def batch(seed=0):
    words = np.random.default_rng(seed).integers(0, WORDS, (2, LENGTH + 1))
    return jnp.asarray(words[:, :-1]), jnp.asarray(words[:, 1:])


def loss_of(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def in_float64(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, tree)


class Oracle:
    """`oracle(params)`: what every module returns, the gradients of that, and of the parameters.

    `loss(params, see)` calls `see(path, y)` with what each module returns.
    """

    def __init__(self, loss):
        def run(params, zeros):
            seen = {}

            def see(path, y):
                seen[path] = y
                return y + zeros[path] if zeros else y

            return loss(params, see), seen

        def all_of(params):
            shapes = jax.eval_shape(lambda p: run(p, {})[1], params)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            (grads, of_outputs), outputs = jax.grad(run, (0, 1), has_aux=True)(params, zeros)
            return outputs, of_outputs, grads

        self._run = jax.jit(all_of)

    def __call__(self, params):
        return self._run(params)


def linen_oracle(model, inputs, targets):
    def loss(params, see):
        def intercept(next_fun, args, kwargs, context):
            y = next_fun(*args, **kwargs)
            if context.method_name != "__call__":
                return y
            return see(".".join(context.module.path), y)

        with linen.intercept_methods(intercept):
            return loss_of(model.apply({"params": params}, inputs), targets)

    return Oracle(loss)


def nnx_oracle(model, inputs, targets):
    graph = nnx.graphdef(model)
    rest = nnx.state(model, nnx.Not(nnx.Param))

    def loss(params, see):
        own = nnx.merge(graph, params, rest)
        paths = {id(m): ".".join(map(str, p)) for p, m in nnx.iter_modules(own)}
        classes = {type(m) for _, m in nnx.iter_modules(own)}
        before = {cls: cls.__call__ for cls in classes if "__call__" in vars(cls)}

        def patched(call):
            return lambda self, *a, **k: see(paths[id(self)], call(self, *a, **k))

        try:
            for cls, call in before.items():
                cls.__call__ = patched(call)
            return loss_of(own(inputs), targets)
        finally:
            for cls, call in before.items():
                cls.__call__ = call

    return Oracle(loss)
