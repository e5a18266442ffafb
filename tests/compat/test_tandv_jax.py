"""tandv's JAX half on the drop-in: section "JAX (Flax)" of the document, and its faults."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
optax = pytest.importorskip("optax")
linen = pytest.importorskip("flax.linen")
pytest.importorskip("pandas")

from sonde.compat.tandv.track.common import read_pickle  # noqa: E402
from sonde.compat.tandv.track.jax import stash_scalar_stats, track  # noqa: E402


class Mlp(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1, name="out")(linen.tanh(linen.Dense(5, name="hidden")(x)))


MODEL = Mlp()
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)
STEPS = 3


def loss_fn(params, x, y):
    return jnp.mean((MODEL.apply(params, x) - y) ** 2)


def update(model_state, opt_state, optimizer, x, y):
    grads = jax.grad(loss_fn)(model_state, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, model_state)
    return optax.apply_updates(model_state, updates), opt_state, grads


def train(function=update, **options):
    """The loop of the document. Returns the frame, and the weights and gradients of each step."""
    optimizer = optax.adam(1e-2)
    model_state = MODEL.init(jax.random.key(0), X)
    opt_state = optimizer.init(model_state)
    used, seen = [], []
    options = {"track_gradients": True, **options}
    with track(model_state=model_state, optimizer_state=opt_state, **options) as tracker:
        for _ in range(STEPS):
            used.append(model_state)
            model_state, opt_state, grads = tracker.intercept(
                function, model_state, opt_state, optimizer, X, Y
            )
            tracker.step(model_state, opt_state, grads)
            seen.append(grads)
    return read_pickle(tracker.out_path), used, seen


def rm2(frame, name, tensor_type):
    meta = frame["metadata"]
    rows = frame[(meta["name"] == name) & (meta["tensor_type"] == tensor_type)]
    return dict(zip(rows["metadata", "step"], rows["scalar_stats", "rm2"], strict=True))


def expected(trees):
    kernels = [np.asarray(t["params"]["hidden"]["kernel"], np.float64) for t in trees]
    return {step: np.sqrt(np.mean(k**2)) for step, k in enumerate(kernels)}


@pytest.mark.parametrize("jitted", [False, True])
def test_tandv_track_jax_flax(jitted):
    """Also with `jax.jit` around the update, for which tandv fails."""
    function = jax.jit(update, static_argnums=2) if jitted else update
    frame, used, grads = train(function)
    assert set(frame["metadata", "tensor_type"]) == {
        *("Activation", "Gradient", "Weights", "Weight_Gradients"),
        *("Optimiser_State.mu", "Optimiser_State.nu"),
    }
    assert {"", "hidden", "out"} <= set(frame["metadata", "name"])
    assert rm2(frame, "hidden", "Weights") == pytest.approx(expected(used), rel=1e-5)
    assert rm2(frame, "hidden", "Weight_Gradients") == pytest.approx(expected(grads), rel=1e-5)
    activations = rm2(frame, "hidden", "Activation")
    for step, state in enumerate(used):
        dense = state["params"]["hidden"]
        y = X @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"])
        assert activations[step] == pytest.approx(np.sqrt(np.mean(y.astype(float) ** 2)), rel=1e-5)


def test_tv_12_include_holds_for_all_types():
    frame, _, _ = train(include="hidden")
    assert {name.split(".")[0] for name in frame["metadata", "name"]} == {"hidden"}


def test_tv_12_a_tree_that_is_tracked_must_be_given():
    state = MODEL.init(jax.random.key(0), X)
    with track(model_state=state) as tracker, pytest.raises(AssertionError, match="`model_state`"):
        tracker.step()
    with track(track_gradients=True) as tracker, pytest.raises(AssertionError, match="`gradients`"):
        tracker.step()


def test_tv_12_outputs_alone_need_no_tree():
    state = MODEL.init(jax.random.key(0), X)
    with track() as tracker:
        tracker.intercept(MODEL.apply, state, X)
        tracker.step()
    frame = read_pickle(tracker.out_path)
    assert set(frame["metadata", "tensor_type"]) == {"Activation"}


def test_tv_12_stash_functions_take_arrays_of_jax():
    """tandv's raise with current JAX."""
    found = stash_scalar_stats(jnp.asarray(X))
    assert found["rm2"] == pytest.approx(np.sqrt(np.mean(X.astype(float) ** 2)))
    assert found["std"] == pytest.approx(X.astype(float).std(ddof=1))


def test_tv_12_a_function_of_your_own_becomes_a_column():
    frame, _, grads = train(stash_value=lambda x: {"l2": jnp.sqrt(jnp.sum(x**2))})
    meta = frame["metadata"]
    rows = frame[(meta["name"] == "hidden") & (meta["tensor_type"] == "Weight_Gradients")]
    norms = [float(np.linalg.norm(g["params"]["hidden"]["kernel"])) for g in grads]
    assert list(rows["scalar_stats", "l2"]) == pytest.approx(norms, rel=1e-5)
