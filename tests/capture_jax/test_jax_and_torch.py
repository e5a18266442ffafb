"""The same weights and data in PyTorch and in JAX leave the same sketches at the same sites."""

import numpy as np
import pytest
from twins import STEPS, in_jax, in_torch

import sonde
from sonde.store import open_run
from sonde.views.answers import ANSWERS_OF_SEVERAL
from sonde.views.questions import parse
from sonde.views.routes import ROUTES
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.runs.several import SeveralRuns


@pytest.fixture(scope="module")
def trained(tmp_path_factory, new_memory):
    folder = tmp_path_factory.mktemp("twins")
    of_torch, of_jax = new_memory(), new_memory()
    in_torch(folder, of_torch)
    in_jax(folder, of_jax)
    return folder, of_torch, of_jax


def in_flax(name):
    """What Flax and optax call a site of PyTorch."""
    weight = {"embed": "embedding", "norm": "scale"}.get(name.partition("/")[0], "kernel")
    for old, new in (("weight", weight), ("exp_avg_sq", "nu"), ("exp_avg", "mu")):
        name = name.replace(old, new)
    return name


def test_equal_sites_have_equal_sketches(trained):
    _, of_torch, of_jax = trained
    for step in range(STEPS):
        left = {in_flax(name): s for name, s in of_torch.at(step).items()}
        right = of_jax.at(step)
        assert sorted(left) == sorted(right)
        kinds = {name.split("/")[1] for name in left}
        assert kinds >= {"output", "output_grad", "param", "param_grad", "update", "optim"}
        for name, sketch in left.items():
            assert right[name].count == sketch.count, name
            if max(abs(sketch.min), abs(sketch.max)) < 1e-12:
                continue  # the gradient of a bias that cancels: rounding
            np.testing.assert_array_equal(right[name].bins, sketch.bins, err_msg=name)
            np.testing.assert_allclose(
                [right[name].sum_abs, right[name].sum_sq, right[name].max],
                [sketch.sum_abs, sketch.sum_sq, sketch.max],
                rtol=1e-6,
                err_msg=name,
            )
        for name in ("loss", "lr", "grad_norm", "betas.0", "eps"):
            one, other = (m.scalars[step, "train"][name] for m in (of_torch, of_jax))
            assert other == pytest.approx(one, rel=1e-6), name


def test_the_comparison_pairs_all_sites_and_finds_no_distance(trained):
    folder, of_torch, _ = trained
    found = sonde.compare(folder / "torch", folder / "jax")
    assert (found.sites.removed, found.sites.added) == ((), ())
    assert len(found.sites.pairs) == len(of_torch.infos)
    slots = {(p.a.slot, p.b.slot) for p in found.sites.pairs if p.is_renamed}
    assert {("weight", "kernel"), ("weight", "scale"), ("weight", "embedding")} <= slots
    assert ("weight/exp_avg_sq", "kernel/nu") in slots
    assert found.steps == tuple(range(STEPS))
    distances = found.distances(frame="arrow").to_pylist()
    assert max(row["w1"] for row in distances if row["w1"] is not None) < 1e-9
    assert (found.verdict, found.first) == ("alike", None)


def test_the_compare_view_has_both_runs_side_by_side(trained):
    folder, of_torch, _ = trained
    opened = {
        name: OpenedRun(open_run(folder / name, frame="arrow"), name) for name in ("torch", "jax")
    }

    def ask(view, **question):
        pairs = [("run", "torch"), ("other", "jax"), *question.items()]
        answer = ANSWERS_OF_SEVERAL[view]
        return answer(SeveralRuns(opened.get), parse(ROUTES[view].question, pairs))

    whole = ask("compare")
    assert (whole.sites, whole.removed_count, whole.added_count) == (len(of_torch.infos), 0, 0)
    assert (whole.verdict, whole.first, whole.farthest) == ("alike", None, ())
    heat = ask("paired_heat", kind="param_grad", stat="rms")
    assert len(heat.difference.rows) == 6
    for run in opened.values():
        run.run.close()
