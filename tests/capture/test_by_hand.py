"""Recording by hand: parameters and gradients when the loop says so, numbers of any tensor."""

import pytest
import torch
from torch import nn

import sonde


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def norm(x):
    return x.norm()


def watched(model, path, **options):
    return sonde.watch(model, every=1, dir=path, name="run", **options)


def test_parameters_are_recorded_as_they_are_when_the_loop_says_so(model, tmp_path):
    with watched(model, tmp_path, log="parameters") as watch:
        watch.add_metric("norm", norm, kind="param")
        with watch.paused():
            watch.record_parameters("param")  # from now on only by hand
        model(torch.ones(1, 4)).sum().backward()
        with torch.no_grad():
            model[0].weight.mul_(2)
        watch.record_parameters("param")
        expected = model[0].weight.norm().item()
        with torch.no_grad():
            model[0].weight.mul_(2)
        watch.step()
        assert watch.metrics()["parameter/0.weight/norm"] == pytest.approx(expected)
    found = sonde.open(tmp_path / "run").stats(
        "0.weight", kind="param", stat=["norm"], phase="train"
    )
    assert found["norm"].tolist() == pytest.approx([expected])


def test_gradients_before_clipping_are_kept_apart_and_clipping_itself_records_none(model, tmp_path):
    with watched(model, tmp_path, log="parameters") as watch:
        watch.add_metric("norm", norm, kind="param_grad")
        model(torch.ones(1, 4)).sum().backward()
        watch.record_parameters("param_grad", stage="before_clip")
        before = model[0].weight.grad.norm().item()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        watch.record_parameters("param_grad")
        after = model[0].weight.grad.norm().item()
        watch.step()
        model(torch.ones(1, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        watch.step()
        first, second = watch.metrics(0), watch.metrics(1)
    assert first["gradient_before_clip/0.weight/norm"] == pytest.approx(before)
    assert first["gradient/0.weight/norm"] == pytest.approx(after)
    assert not [key for key in second if key.startswith("gradient")]


def test_numbers_of_a_tensor_count_by_element_over_the_step(model, tmp_path):
    with watched(model, tmp_path) as watch:
        model(torch.ones(1, 4))
        watch.measure("own/token", torch.tensor([1.0, 2.0, 3.0]))
        watch.measure("own/token", 10.0)
        watch.measure("own/largest", torch.amax, torch.tensor([1.0, 5.0]), reduce="max")
        watch.step()
        assert watch.metrics()["own/token"] == 4
        assert watch.metrics()["own/largest"] == 5


def test_a_function_that_fails_is_told_of_and_training_goes_on(model, tmp_path):
    def broken(_x):
        raise ZeroDivisionError("no")

    def train():
        with watched(model, tmp_path) as watch:
            model(torch.ones(1, 4))
            watch.measure("broken", broken, torch.ones(1))
            watch.measure("fine", 1.0)
            watch.step()
            return watch.metrics()

    with pytest.warns(sonde.SondeWarning, match="ZeroDivisionError"):
        found = train()
    assert found["fine"] == 1
    assert "broken" not in found


def test_nothing_is_measured_in_a_step_that_is_not_recorded(model, tmp_path):
    with sonde.watch(model, every=2, dir=tmp_path) as watch:
        model(torch.ones(1, 4))
        watch.step()
        model(torch.ones(1, 4))
        watch.measure("own", 1.0)
        watch.step()
        assert "own" not in watch.metrics(1)


def test_a_kind_that_is_none_is_refused(model, tmp_path):
    with watched(model, tmp_path) as watch:
        with pytest.raises(sonde.SondeError, match="takes `param` or `param_grad`"):
            watch.record_parameters("update")
        with pytest.raises(sonde.SondeError, match="before_clip"):
            watch.record_parameters("param", stage="before_clip")


def test_passes_inside_a_pause_are_no_sign_of_steps_that_never_end(model, tmp_path):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(model, tmp_path) as watch, watch.paused():
        for _ in range(30):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    assert watch.current_step == 0
