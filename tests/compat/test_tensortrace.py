"""Behaviours of TensorTracer, on the drop-in; and its faults, which it does not have."""

import importlib
import sys

import pytest
import torch
from torch import nn

import sonde
from sonde.compat.tensortrace import (
    GlobalVariableResult,
    H5PYSaverCallback,
    ModelTracer,
    Variable,
    stack_padded_tensors,
    stack_tensors,
    trace_model,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.bn = nn.BatchNorm1d(2)
        self.count = 0

    def helper(self, x):
        q = 2 * x
        return q

    def forward(self, x):
        self.count += 1
        d = {"t": {"u": x + 1}}
        pair = [x, 3 * x]
        nothing = None
        x = self.bn(self.fc(self.helper(x)))
        return x + len(pair) + len(d) * 0 if nothing is None else x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.encoder:
            x = block(x)
        return x


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def called(model, n):
    return [model(torch.randn(4, 2)) for _ in range(n)]


def test_the_modules_of_the_original_are_here():
    package = "sonde.compat.tensortrace"
    assert importlib.import_module(f"{package}.h5py_tracer").H5PYSaverCallback is H5PYSaverCallback
    assert importlib.import_module(f"{package}.tracer").ModelTracer is ModelTracer


def test_results_have_iterations_ranks_and_values(model):
    with ModelTracer(model, ["forward", "forward.x"], trace_interval=2) as tracer:
        outputs = called(model, 6)
    result = tracer.results["forward"]
    iterations, ranks, values = result
    assert iterations == result.iterations == [2, 4, 6]
    assert ranks == result.ranks == [0, 0, 0]
    assert all(torch.equal(v, outputs[i - 1]) for v, i in zip(values, iterations, strict=True))
    assert tracer.current_iteration == 6


def test_one_mode_or_the_other_but_not_only_both(model):
    with pytest.raises(AssertionError, match="exclude each other"):
        ModelTracer(model, ["forward"], eval_only=True, train_only=True)
    tracers = [
        ModelTracer(model, "forward", train_only=True),
        ModelTracer(model, "forward", eval_only=True),
        ModelTracer(model, "forward"),
    ]
    with tracers[0], tracers[1], tracers[2]:
        called(model.train(), 3)
        called(model.eval(), 2)
    assert [len(t.results["forward"].values) for t in tracers] == [3, 2, 5]


def test_variables_of_the_later_interface_have_intervals_and_modes_of_their_own(model):
    often = Variable("forward", trace_interval=1, gather_interval=2)
    seldom = Variable(["encoder.0", "encoder.1.forward"], trace_interval=3)
    evaluated = Variable("forward", mode="eval")
    with ModelTracer(model, [often, seldom, evaluated]):
        called(model, 7)
        called(model.eval(), 2)
    assert often.results["forward"].iterations == list(range(1, 8))
    assert seldom.results["encoder.0"].iterations == [3, 6]
    assert seldom.results["encoder.1.forward"].iterations == [3, 6]
    assert evaluated.results["forward"].iterations == [1, 2]
    assert isinstance(often.results["forward"], GlobalVariableResult)
    with ModelTracer(model.train(), often):
        called(model, 1)
    assert often.results["forward"].iterations == [1]


def test_nothing_of_the_model_is_replaced(model):
    trace_function = sys.gettrace()
    with ModelTracer(model, ["forward.x"]):
        assert "forward" not in vars(model)
        called(model, 1)
        assert sys.gettrace() is trace_function
    assert "forward" not in vars(model)

    class InterruptedError_(Exception):
        pass

    def interrupted():
        with ModelTracer(model, ["forward.x"]):
            called(model, 1)
            raise InterruptedError_

    with pytest.raises(InterruptedError_):
        interrupted()
    assert sys.gettrace() is trace_function
    assert not model._forward_hooks


def test_a_model_is_called_once_with_its_variables_traced(model):
    x = torch.ones(4, 2)
    output, tracer = trace_model(model.eval(), ["forward.x", "encoder.1"], x)
    assert torch.equal(output, model(x))
    assert tracer.results["encoder.1"].iterations == [1]
    assert torch.equal(tracer.results["encoder.1"].values[0], output)


def test_callbacks_run_in_order_with_what_they_change(model):
    seen = []

    def pre_save(name, value, iteration):
        seen.append(("pre_save", name, iteration))
        return value.sum()

    def pre_gather(name, values, iterations):
        seen.append(("pre_gather", name, len(values), tuple(iterations)))
        values.append(torch.tensor(0.0))

    def post_gather(name, values, iterations, ranks):
        seen.append(("post_gather", name, len(values), tuple(iterations), tuple(ranks)))
        values[:] = [torch.stack(values)]

    def post_trace(name, values, iterations, ranks):
        seen.append(("post_trace", name, len(values), tuple(iterations)))
        values.reverse()

    with ModelTracer(
        model,
        ["encoder.1"],
        gathering_interval=2,
        pre_save_callbacks=[pre_save],
        pre_gather_callbacks=[pre_gather],
        post_gather_callbacks=[post_gather],
        post_trace_callbacks=[post_trace],
    ) as tracer:
        outputs = called(model, 4)
    assert [entry[0] for entry in seen][-1] == "post_trace"
    assert [entry for entry in seen if entry[0] == "pre_save"] == [
        ("pre_save", "encoder.1", i) for i in (1, 2, 3, 4)
    ]
    assert ("pre_gather", "encoder.1", 2, (1, 2)) in seen
    assert ("post_gather", "encoder.1", 3, (3, 4), (0, 0)) in seen
    assert ("post_trace", "encoder.1", 2, (1, 2, 3, 4)) in seen
    last = torch.stack([outputs[2].sum(), outputs[3].sum(), torch.tensor(0.0)])
    assert torch.equal(tracer.results["encoder.1"].values[0], last)


def test_callbacks_of_the_later_interface_change_fields(model):
    def keep_one(name, result):
        result.values = [result.values[0]]
        result.iterations = result.iterations[:1]
        result.ranks = result.ranks and result.ranks[:1]

    def drop(name, result):
        result.values = result.iterations = result.ranks = None

    kept = Variable(
        "forward", gather_interval=2, pre_gather_callbacks=[keep_one], post_trace_callbacks=[]
    )
    dropped = Variable("forward.x", post_gather_callbacks=[stack_padded_tensors, drop])
    with ModelTracer(model, [kept, dropped]):
        called(model, 4)
    assert kept.results["forward"].iterations == [1, 3]
    assert tuple(dropped.results["forward.x"]) == ([], [], [])


def test_tensors_are_stacked_with_zeros_at_the_end():
    values = [torch.ones(2, 3), torch.ones(4)]
    stack_padded_tensors("x", values, [1, 2], [0, 0])
    assert values[0].shape == (2, 2, 4)
    assert values[0][0].tolist() == [[1, 1, 1, 0]] * 2
    assert values[0][1].tolist() == [[1] * 4, [0] * 4]
    same = [torch.ones(2), torch.zeros(2)]
    stack_tensors("x", same, [1, 2])
    assert same[0].tolist() == [[1, 1], [0, 0]]
    nothing = []
    stack_padded_tensors("x", nothing, [])
    assert nothing[0].numel() == 0
    result = GlobalVariableResult([1], [0], [torch.ones(2)])
    stack_tensors("x", result)
    assert result.values[0].shape == (1, 2)


def test_paths_name_methods_locals_attributes_and_what_is_inside(model):
    paths = [
        *("forward", "forward.x", "encoder.0", "encoder.1.forward", "encoder.0.helper.q"),
        *("encoder.0.forward.self.count", "encoder.0.forward.self.bn.running_var"),
        *("encoder.0.forward.d.t.u", "encoder.0.forward.pair.0"),
    ]
    x = torch.randn(4, 2)
    with ModelTracer(model, paths) as tracer:
        model(x)
    results = tracer.results
    assert set(results) == set(paths)
    assert torch.equal(results["encoder.0.helper.q"].values[0], 2 * x)
    assert results["encoder.0.forward.self.count"].values[-1] == 1
    assert torch.equal(results["encoder.0.forward.d.t.u"].values[0], x + 1)
    assert torch.equal(results["encoder.0.forward.pair.0"].values[0], x)
    assert torch.equal(
        results["encoder.0.forward.self.bn.running_var"].values[-1], model.encoder[0].bn.running_var
    )
    assert len(results["forward.x"].values) == 3  # the argument, and twice the loop


def test_a_star_is_one_component_and_no_frame_of_torch_is_seen(model):
    with ModelTracer(model, ["encoder.*", "encoder.*.forward.pair.*"]) as tracer:
        called(model, 1)
    assert set(tracer.results) == {
        *("encoder.0", "encoder.1"),
        *(f"encoder.{i}.forward.pair.{k}" for i in (0, 1) for k in (0, 1)),
    }


def test_values_are_copies_and_none_is_a_value(model):
    class Writing(nn.Module):
        def forward(self, x):
            nothing = None
            held = (x, {"a": 1})
            y = x * 2
            z = y
            y = y + 0
            z.zero_()
            return y + (0 if nothing is None else len(held))

    with ModelTracer(Writing(), ["forward.held", "forward.nothing", "forward.y"]) as tracer:
        tracer.model(torch.ones(2))
    assert tracer.results["forward.y"].values[0].tolist() == [2, 2]
    assert tracer.results["forward.nothing"].values == [None]
    assert tracer.results["forward.held"].values[0][1] == {"a": 1}


def test_a_value_is_kept_when_it_has_changed_and_only_then():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("steps", torch.zeros(()))
            self.held = []

        def forward(self, x):
            self.steps += 1
            self.held.append(1)
            return x * self.weight

    model = Counting()
    paths = ["forward.self.weight", "forward.self.steps", "forward.self.held"]
    lines = []
    with ModelTracer(
        model,
        paths,
        pre_save_callbacks=[lambda name, value, iteration: (lines.append(name), value)[1]],
    ) as tracer:
        for _ in range(4):
            model(torch.ones(2))
    assert tracer.results["forward.self.weight"].iterations == [1]
    assert set(tracer.results["forward.self.steps"].iterations) == {1, 2, 3, 4}
    assert set(tracer.results["forward.self.held"].iterations) == {1, 2, 3, 4}  # in place
    assert lines.count("forward.self.weight") == 1


def test_a_receiver_of_any_name_is_followed():
    class Odd(nn.Module):
        def forward(this, x):
            y = x + 1
            return y

    with ModelTracer(Odd(), ["forward.y"]) as tracer:
        tracer.model(torch.zeros(1))
    assert tracer.results["forward.y"].values[0].item() == 1


def test_a_path_that_cannot_match_is_an_error_and_not_an_empty_result(model):
    with pytest.raises(sonde.SondeError, match="encoder"):
        ModelTracer(model, ["encoder.7"]).__enter__()


def test_a_file_holds_values_iterations_and_ranks_in_one_process(model):
    h5py = pytest.importorskip("h5py")
    saver = H5PYSaverCallback("deep/folder/values.h5", compression="gzip", shuffle=True)
    with ModelTracer(
        model,
        ["forward", "encoder.0.forward.self.count"],
        gathering_interval=2,
        post_gather_callbacks=[saver],
    ) as tracer:
        outputs = called(model, 5)
    assert tracer.results["forward"].values == []
    content, iterations = saver.datasets["forward"]
    assert content.shape == saver.datasets["forward"].shape == (5, 4, 2)
    assert iterations[:].tolist() == [1, 2, 3, 4, 5]
    saver.close()
    with h5py.File("deep/folder/values.h5") as file:
        assert torch.equal(torch.tensor(file["forward"][:]), torch.stack(outputs))
        assert file["forward_iterations"].dtype == "int64"
        assert file["forward_ranks"][:].tolist() == [0] * 5
        assert file["encoder.0.forward.self.count"].dtype == "int32"


def test_a_file_that_exists_is_replaced_or_refused_and_types_are_chosen(model):
    h5py = pytest.importorskip("h5py")
    with open("values.h5", "w") as file:
        file.write("something else")
    with pytest.raises(ValueError, match="exists"):
        H5PYSaverCallback("values.h5", existing_ok=False)
    saver = H5PYSaverCallback("values.h5", iteration_dtype="int32", float_dtype="float16")
    values = Variable("forward", post_gather_callbacks=[saver])
    with ModelTracer(model.to(torch.bfloat16), values):
        model(torch.ones(4, 2, dtype=torch.bfloat16))
    saver.close()
    with h5py.File("values.h5") as file:
        assert file["forward"].dtype == "float16"
        assert file["forward_iterations"].dtype == "int32"


def test_values_that_do_not_fit_the_file_are_told_of_and_the_others_are_kept():
    pytest.importorskip("h5py")
    model = nn.Identity()
    saver = H5PYSaverCallback("values.h5")

    def train():
        with ModelTracer(model, "forward", post_gather_callbacks=[saver]):
            model(torch.ones(2))
            model(torch.ones(3))  # padded
            model(torch.ones(1, 1, 1))

    with pytest.warns(sonde.SondeWarning, match="dimensions"):
        train()
    assert saver.datasets["forward"].shape == (2, 3)
    saver.close()
