"""When a step is recorded, what an unrecorded one runs, and what happens to bad input."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import sonde
import sonde.jax


def halving(x):
    return sonde.jax.attach(x * 0.5, "half")


@pytest.fixture
def watch(tmp_path, memory):
    with sonde.jax.watch(halving, dir=tmp_path, every=2, sinks=[memory]) as opened:
        yield opened


def test_switching_between_recorded_and_other_steps_traces_nothing_again(watch, memory):
    traced = []

    @jax.jit
    def step(x):
        traced.append(1)
        return halving(x)

    wrapped = watch.wrap(step)
    x = jnp.ones(4)
    for _ in range(6):
        x = wrapped(x)
    watch.flush()
    assert len(traced) == 2, "once as it is, once for recording"
    assert [s for s, _ in memory.steps] == [0, 2, 4]
    assert x.tolist() == [2.0**-6] * 4


def test_a_function_that_was_compiled_before_is_recorded(watch, memory):
    inner = jax.jit(halving)
    inner(jnp.ones(4))
    watch.wrap(jax.jit(lambda x: inner(x) + 1))(jnp.ones(4))
    watch.flush()
    assert memory.at(0)["./attach/half"].count == 4
    assert "sonde" not in str(jax.make_jaxpr(inner)(jnp.ones(4))), "nothing of it stays"


def test_steps_that_are_not_recorded_call_the_function_itself(watch):
    seen = []

    def step(x):
        seen.append(sonde.jax.attach(x, "x") is x)
        return x

    wrapped = watch.wrap(step)
    for _ in range(4):
        wrapped(jnp.ones(1))
    assert seen == [False, True, True], "traced once for recording, called in steps 1 and 3"


def test_what_a_function_asks_of_the_compiler_holds_for_recorded_steps_too(watch, memory):
    options = {"xla_allow_excess_precision": False}
    step = watch.wrap(jax.jit(halving, donate_argnums=0, compiler_options=options))
    x = jnp.ones(2)
    assert step(x).tolist() == [0.5, 0.5]
    watch.flush()
    assert x.is_deleted()
    assert memory.at(0)["./attach/half"].count == 2


def training(seed):
    model = nnx.Linear(3, 3, rngs=nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)


def test_a_training_with_recorded_steps_is_the_one_without(tmp_path):
    """On the CPU in float32 XLA keeps no excess precision here: every step is bit-identical."""

    def train_step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda m: (jnp.tanh(m(x)) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    x = jax.random.normal(jax.random.key(0), (5, 3))
    plain, watched = training(0), training(0)
    step = nnx.jit(train_step)
    losses = [step(*plain, x) for _ in range(6)]
    with sonde.watch(*watched, dir=tmp_path, every=2) as watch:
        wrapped = watch.wrap(step)
        assert [wrapped(*watched, x) for _ in range(6)] == losses
    for a, b in zip(
        jax.tree.leaves(nnx.state(plain)), jax.tree.leaves(nnx.state(watched)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert nnx.graphdef(watched[0]) == nnx.graphdef(plain[0]), "nothing is left on the model"


def test_plain_functions_over_modules_of_nnx_change_them_in_place(tmp_path, memory):
    model, optimizer = training(1)
    before = np.asarray(model.kernel[...])

    def train_step(model, optimizer, x):
        grads = nnx.grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, grads)

    with sonde.watch(model, optimizer, dir=tmp_path, every=1, sinks=[memory], strict=True) as watch:
        watch.wrap(train_step)(model, optimizer, jnp.ones((2, 3)))
    assert not np.array_equal(before, model.kernel[...])
    assert memory.at(0)["./param_grad/kernel"].count == 9


def test_phases_pauses_and_closing(watch, memory):
    step = watch.wrap(jax.jit(halving))
    evaluate = jax.jit(halving)
    with watch.paused():
        step(jnp.ones(1))
    step(jnp.ones(2))
    with watch.phase("check"):
        watch.intercept(evaluate, jnp.ones(3))
    watch.close()
    assert step(jnp.ones(4)).tolist() == [0.5] * 4
    assert memory.steps == [(1, "check")]
    assert memory.at(1, "check")["./attach/half"].count == 3


# -- bad input ---------------------------------------------------------------------------------


def test_a_function_that_jit_cannot_compile_runs_as_it_is_with_a_word(watch, unheard):
    def step(x):
        return x + 1 if x.sum() > 0 else x - 1

    assert watch.wrap(step)(jnp.ones(2)).tolist() == [2.0, 2.0]
    watch.flush()
    (text,) = unheard
    assert "`step` cannot be recorded and runs as it is" in text
    assert "jax.lax.cond" in text
    unheard.clear()


def test_a_strict_watch_raises_instead(tmp_path):
    with (
        sonde.jax.watch(halving, dir=tmp_path, every=1, strict=True) as watch,
        pytest.raises(sonde.SondeError, match=r"jax\.lax\.cond"),
    ):
        watch.wrap(lambda x: x if x.sum() > 0 else -x)(jnp.ones(2))


def test_a_leaked_tracer_is_named(watch, unheard):
    kept = []
    jax.jit(lambda x: kept.append(x) or x)(jnp.ones(2))
    wrapped = watch.wrap(jax.jit(lambda x: x + kept[0]))
    with pytest.raises(jax.errors.UnexpectedTracerError):  # as it would without us
        wrapped(jnp.ones(2))
    watch.flush()
    assert "a traced value has leaked" in unheard[0]
    unheard.clear()


def test_donated_trees_are_refused_by_name(watch, unheard):
    params = {"w": jnp.ones(3)}
    jax.jit(lambda p: jax.tree.map(jnp.negative, p), donate_argnums=0)(params)
    watch.step(params)
    assert unheard[0].startswith("`./w` was not recorded: its buffer was donated")
    assert watch.current_step == 1
    unheard.clear()


def test_traced_numbers_are_refused(watch, unheard):
    jax.jit(lambda x: watch.log(loss=x) or x)(jnp.ones(()))
    assert "`loss` was not logged: it is a traced value" in unheard[0]
    unheard.clear()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: sonde.jax.watch(3), "`model` must be a flax.nnx.Module, .* got int"),
        (lambda: sonde.jax.watch(nnx.Linear), "got the class Linear"),
        (lambda: sonde.watch(nnx.Rngs(0)), "`model` must be"),
        (lambda: sonde.jax.attach(jnp.ones(1), ""), "`name` must be a str"),
    ],
)
def test_what_cannot_be_watched_is_an_error_that_says_so(call, text):
    with pytest.raises(sonde.SondeError, match=text):
        call()


def test_what_is_no_function_or_optimizer_is_an_error(watch):
    with pytest.raises(sonde.SondeError, match="must be a step function"):
        watch.wrap(3)
    with pytest.raises(sonde.SondeError, match="must be an optax optimizer"):
        watch.optimizer(3)


def test_a_torch_model_is_no_function(tmp_path, unheard):
    import torch

    with sonde.watch(torch.nn.Linear(2, 2), dir=tmp_path) as watch:
        with pytest.raises(sonde.SondeError, match="is for JAX"):
            watch.wrap(len)
        watch.step({"w": 1})
    assert "takes trees of arrays in JAX only" in unheard.pop()


def test_without_jax_the_error_names_the_extra(tmp_path):
    code = """
import sys
sys.modules["jax"] = None
import sonde.jax
try:
    sonde.jax.watch(len)
except ImportError as error:
    assert "pip install 'sonde[jax]'" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
