"""Metrics of JAX models: pure functions of arrays, evaluated inside the compiled step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import sonde
import sonde.jax
from sonde.metrics.model import Merge

X = jnp.linspace(-1.0, 2.0, 12).reshape(4, 3)


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(3, 5, rngs=rngs)
        self.down = nnx.Linear(5, 2, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.relu(self.up(x)))


def train_step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


@pytest.fixture
def training(tmp_path, memory):
    """`watch, step`: a watched training, one call of which is a step."""
    model = Mlp(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    how = {"dir": tmp_path, "sinks": [memory], "strict": True}
    with sonde.watch(model, optimizer, every=1, **how) as watch:
        run = watch.wrap(nnx.jit(train_step))
        watch.model = model
        yield watch, lambda: run(model, optimizer, X)


def test_a_metric_is_evaluated_at_every_site_of_its_kind(training, memory):
    watch, step = training
    watch.add_metric("largest", lambda x: jnp.abs(x).max())
    watch.add_metric("l2", jnp.linalg.norm, kind="param_grad", where="*.kernel")
    expected = float(jnp.abs(watch.model(X)).max())
    step()
    watch.flush()
    found = memory.scalars[0, "train"]
    assert found["largest"] == pytest.approx(expected), "of the root, whose module is not shown"
    flat = watch.metrics(0)
    assert flat["activation/[root module]/largest"] == pytest.approx(expected)
    assert {k for k in flat if "/l2" in k} == {
        f"gradient/{layer}.kernel/l2" for layer in ("up", "down")
    }
    sketch = memory.at(0)["up/param_grad/kernel"]
    assert flat["gradient/up.kernel/l2"] == pytest.approx(sketch.sum_sq**0.5, rel=1e-6)


def test_numbers_of_modules_are_in_the_run(training):
    watch, step = training
    watch.add_metric("parts", lambda x: {"low": x.min(), "high": x.max()}, where="up")
    step()
    watch.close()
    table = sonde.open(watch.path).metrics(frame="arrow").to_pylist()
    found = {(row["module"], row["name"]) for row in table if row["module"] is not None}
    assert found == {("up", "parts/low"), ("up", "parts/high")}


def test_adding_a_metric_changes_no_number_of_the_training(tmp_path):
    def trained(name, *metrics):
        model = Mlp(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        with sonde.watch(model, optimizer, every=1, dir=tmp_path, name=name) as watch:
            for metric in metrics:
                watch.add_metric(metric)
            step = watch.wrap(nnx.jit(train_step))
            return [float(step(model, optimizer, X)) for _ in range(4)]

    assert trained("a") == trained("b", "update_ratio", "dead_fraction", "stable_rank")


def test_metrics_of_several_arrays_meet_them_together(training, memory):
    watch, step = training
    watch.add_metric("update_ratio")
    watch.add_metric("update_grad_cosine")
    watch.add_metric(
        "gain", lambda x, y: jnp.abs(y).sum() / jnp.abs(x).sum(), kind=("input", "output")
    )
    kernel = np.asarray(watch.model.up.kernel[...])
    step()
    flat = watch.metrics(0)
    change = np.asarray(watch.model.up.kernel[...]) - kernel
    expected = np.linalg.norm(change) / np.linalg.norm(kernel)
    assert flat["update_ratio/up.kernel"] == pytest.approx(expected, rel=1e-4)
    assert flat["update_grad_cosine/up.kernel"] == pytest.approx(-1, rel=1e-5)
    assert {k for k in flat if k.startswith("gain/")} == {
        "gain/up",
        "gain/down",
        "gain/[root module]",
    }


def test_built_in_metrics_have_the_numbers_of_numpy(training):
    watch, step = training
    for name in ("dead_fraction", "channel_max", "stable_rank", "effective_rank"):
        watch.add_metric(name)
    kernel = np.asarray(watch.model.up.kernel[...], np.float64)
    up = np.abs(np.asarray(watch.model.up(X)))
    step()
    flat = watch.metrics(0)
    values = np.linalg.svd(kernel, compute_uv=False)
    p = values / values.sum()
    assert flat["parameter/up.kernel/stable_rank"] == pytest.approx(
        (values**2).sum() / values[0] ** 2
    )
    assert flat["parameter/up.kernel/effective_rank"] == pytest.approx(
        np.exp(-(p * np.log(p)).sum())
    )
    assert flat["activation/up/dead_fraction"] == 0
    assert flat["activation/up/channel_max/max"] == pytest.approx(up.max())
    assert flat["activation/up/channel_max/channel"] == up.max(0).argmax()
    assert "parameter/up.bias/stable_rank" not in flat


def test_reductions_go_over_all_calls_of_a_step(tmp_path):
    class Twice(linen.Module):
        @linen.compact
        def __call__(self, x):
            half = linen.Dense(3, name="half")
            return half(half(x[:2])), half(x)

    model = Twice()
    params = model.init(jax.random.key(0), X)
    with sonde.watch(model, every=1, dir=tmp_path, strict=True) as watch:
        for reduce in ("mean", "sum", "min", "max"):
            watch.add_metric(reduce, lambda x: x, where="half", reduce=reduce)
        watch.add_metric("median", lambda x: x, where="half", reduce=jnp.median)
        watch.add_metric(
            "peak", lambda x: x.max(0), where="half", reduce=Merge(jnp.maximum, jnp.sum)
        )
        watch.wrap(jax.jit(lambda p: model.apply(p, X)))(params)
        found = watch.metrics(0)

    def dense(x):
        return x @ params["params"]["half"]["kernel"] + params["params"]["half"]["bias"]

    calls = [dense(X[:2]), dense(dense(X[:2])), dense(X)]
    every = np.concatenate([np.asarray(c).reshape(-1) for c in calls])
    for name in ("mean", "sum", "min", "max", "median"):
        expected = getattr(np, name)(every)
        assert found[f"activation/half/{name}"] == pytest.approx(expected, rel=1e-5, abs=1e-6), name
    peaks = np.max([np.asarray(c).max(0) for c in calls], axis=0)
    assert found["activation/half/peak"] == pytest.approx(peaks.sum(), rel=1e-5)


def test_several_calls_of_a_function_in_one_step_count_together(tmp_path):
    def loss(x):
        return sonde.jax.attach(x, "x").sum()

    with sonde.jax.watch(loss, every=1, dir=tmp_path, strict=True) as watch:
        watch.add_metric("mean", lambda x: x, kind="attach")
        watch.intercept(jax.jit(loss), jnp.ones(3))
        watch.intercept(jax.jit(loss), jnp.full(1, 5.0))
        watch.step()
        assert watch.metrics(0)["attach/[root module]/x/mean"] == 2.0


def test_layers_of_a_scan_have_numbers_of_their_own_and_branches_count_when_taken(tmp_path):
    def layers(x, flag):
        def turn(x, k):
            return sonde.jax.attach(x * k, "h"), None

        x, _ = jax.lax.scan(turn, x, jnp.array([2.0, 3.0]))
        yes, no = (lambda x, n=n: sonde.jax.attach(x, n) for n in ("yes", "no"))
        return jax.lax.cond(flag, yes, no, x)

    with sonde.jax.watch(layers, every=1, dir=tmp_path, strict=True) as watch:
        watch.add_metric("top", lambda x: x.max(), kind="attach")
        watch.wrap(jax.jit(layers))(jnp.ones(3), True)
        found = watch.metrics(0)
    start = "attach/[root module]"
    assert found[f"{start}/h.0/top"] == 2.0
    assert found[f"{start}/h.1/top"] == 6.0
    assert found[f"{start}/yes/top"] == 6.0
    assert np.isnan(found[f"{start}/no/top"])


def test_parameters_stacked_for_a_scan_have_a_number_for_each_layer(tmp_path):
    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.fc = nnx.Linear(3, 3, rngs=rngs)

        def __call__(self, x):
            return self.fc(x)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.split_rngs(splits=2)(nnx.vmap(Layer))(rngs)

        def __call__(self, x):
            run = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return run(x, self.layers)

    model = Model(nnx.Rngs(0))
    kernels = np.asarray(model.layers.fc.kernel[...])
    with sonde.watch(model, every=1, dir=tmp_path, strict=True) as watch:
        watch.add_metric("norm", jnp.linalg.norm, kind="param", where="*.kernel")
        watch.wrap(nnx.jit(lambda m: m(X)))(model)
        found = watch.metrics(0)
    for i in range(2):
        expected = np.linalg.norm(kernels[i])
        assert found[f"parameter/layers.{i}.fc.kernel/norm"] == pytest.approx(expected, rel=1e-6)


def test_a_metric_of_a_sharded_array_is_that_of_the_whole(tmp_path):
    mesh = Mesh(np.array(jax.devices()[:8]), ("all",))
    values = np.arange(16.0, dtype=np.float32)
    x = jax.device_put(values, NamedSharding(mesh, PartitionSpec("all")))
    with sonde.jax.watch(len, every=1, dir=tmp_path, strict=True) as watch:
        watch.add_metric("norm", jnp.linalg.norm, kind="attach")
        watch.wrap(jax.jit(lambda x: sonde.jax.attach(x, "x")))(x)
        found = watch.metrics(0)
    assert found["attach/[root module]/x/norm"] == pytest.approx(np.linalg.norm(values), rel=1e-6)


def test_a_metric_with_a_schedule_is_evaluated_only_then(training, memory):
    watch, step = training
    watch.add_metric("top", jnp.max, every=2)
    for _ in range(3):
        step()
    watch.flush()
    assert ["top" in memory.scalars[i, "train"] for i in range(3)] == [True, False, True]


def test_a_metric_that_raises_is_named_and_the_rest_goes_on(tmp_path, memory, unheard):
    model = Mlp(nnx.Rngs(0))

    def wrong(x):
        raise ValueError("no")

    with sonde.watch(model, every=1, dir=tmp_path, sinks=[memory]) as watch:
        watch.add_metric("wrong", wrong)
        watch.add_metric("top", jnp.max)
        watch.wrap(nnx.jit(lambda m: m(X)))(model)
    assert "Stopped recording `metric wrong`" in unheard[0]
    assert "top" in memory.scalars[0, "train"]
    assert memory.at(0)["up/output/0"].count == 20
    unheard.clear()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "unknown"}, "There is no metric `unknown`.*update_ratio"),
        ({"name": "x", "fn": jnp.max, "kind": "outputs"}, "has no kind 'outputs'"),
        ({"name": "x", "fn": jnp.max, "against": "reference"}, "JAX models cannot have"),
    ],
)
def test_metrics_that_cannot_be_are_refused(training, options, text):
    with pytest.raises(sonde.SondeError, match=text):
        training[0].add_metric(**options)


def test_a_reference_is_refused_with_what_to_do(training):
    with pytest.raises(sonde.SondeError, match=r"References are not available.*watch\.log"):
        training[0].set_reference("init")


# -- hyperparameters ---------------------------------------------------------------------------


def test_injected_hyperparameters_are_scalars(tmp_path, memory):
    model = Mlp(nnx.Rngs(0))
    rate = optax.linear_schedule(0.1, 0.2, 2)
    tx = optax.inject_hyperparams(optax.adamw)(learning_rate=rate, weight_decay=0.5)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path, sinks=[memory], strict=True) as watch:
        step = watch.wrap(nnx.jit(train_step))
        for _ in range(3):
            step(model, optimizer, X)
        assert watch.metrics(1)["lr"] == pytest.approx(0.15)
    rates = [memory.scalars[i, "train"]["lr"] for i in range(3)]
    assert rates == pytest.approx([0.1, 0.15, 0.2])
    found = memory.scalars[0, "train"]
    assert found["weight_decay"] == 0.5
    assert found["betas.0"] == pytest.approx(0.9)
    assert {"grad_norm", "eps"} <= set(found)
    assert not any("hyperparams" in name for name in memory.at(0)), "they are no tensors"
    assert "up/optim/kernel/mu" in memory.at(0)


def test_hyperparameters_of_parts_have_their_label(tmp_path, memory):
    params = {"head": {"w": jnp.ones(2)}, "body": {"w": jnp.ones(3)}}
    adam = optax.inject_hyperparams(optax.adam)
    parts = {"slow": adam(learning_rate=0.1), "fast": adam(learning_rate=0.3)}
    plain = optax.multi_transform(parts, {"head": "fast", "body": "slow"})
    with sonde.jax.watch(params, every=1, dir=tmp_path, sinks=[memory], strict=True) as watch:
        tx = watch.optimizer(plain)
        update = jax.jit(lambda p, s: tx.update(jax.tree.map(jnp.ones_like, p), s, p))
        watch.wrap(update)(params, tx.init(params))
    found = memory.scalars[0, "train"]
    assert (found["lr/slow"], found["lr/fast"]) == (pytest.approx(0.1), pytest.approx(0.3))


def test_hyperparameters_of_trees_given_by_hand_are_scalars(tmp_path, memory):
    params = {"w": jnp.ones(2)}
    state = optax.inject_hyperparams(optax.sgd)(learning_rate=0.25).init(params)
    with sonde.jax.watch(params, every=1, dir=tmp_path, sinks=[memory], strict=True) as watch:
        watch.step(params, state)
    assert memory.scalars[0, "train"]["lr"] == 0.25


def test_without_hyperparameters_there_are_none(tmp_path, memory):
    params = {"w": jnp.ones(2)}
    plain = optax.inject_hyperparams(optax.sgd)(learning_rate=0.25)
    how = {"dir": tmp_path, "sinks": [memory], "hyperparameters": False}
    with sonde.jax.watch(params, every=1, **how) as watch:
        tx = watch.optimizer(plain)
        watch.wrap(partial(tx.update, params=params))({"w": jnp.ones(2)}, tx.init(params))
    assert memory.scalars == {}
