"""A trace goes along with whatever a training does, and leaves nothing of itself behind."""

import copy
import io
import os
import pdb  # noqa: T100
import pickle
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.tracing import mean_over, stack, stack_padded


class Model(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)

    def forward(self, x, fail=False):
        h = self.fc(x).relu()
        if fail:
            scaled = h * 2
            raise ValueError(scaled.shape)
        y = self.out(h)
        return y

    def loss(self, y):
        total = y.square().mean()
        return total


def batches(n, width=4):
    torch.manual_seed(1)
    return [torch.randn(3, width) for _ in range(n)]


def train(model, n=3, **options):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for x in batches(n):
        loss = model.loss(model(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def made():
    torch.manual_seed(0)
    return Model()


# -- training is untouched ----------------------------------------------------------------------


def test_losses_and_weights_are_bit_identical_with_and_without():
    plain, traced = made(), made()
    state = torch.get_rng_state()
    expected = train(plain, 10)
    paths = ["**.forward", "forward.*", "loss.total", "forward.h@grad", "forward.self.**"]
    torch.set_rng_state(state)
    with sonde.trace(traced, paths):
        assert train(traced, 10) == expected
    for a, b in zip(plain.parameters(), traced.parameters(), strict=True):
        assert torch.equal(a, b)


def test_nothing_is_left_on_the_model():
    model = made()
    before = {k: v for k, v in vars(model).items() if not k.startswith("_")}
    code, attributes = Model.forward.__code__, dict(vars(Model.forward))
    linear = nn.Linear.forward.__code__
    with sonde.trace(
        model, ["forward.h", "fc", "loss.total", "fc.forward.input", "forward.y@grad"]
    ):
        train(model)
    assert Model.forward.__code__ is code
    assert dict(vars(Model.forward)) == attributes
    assert {k: v for k, v in vars(model).items() if not k.startswith("_")} == before
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_always_called
        assert not module._forward_hooks_with_kwargs
    assert "forward" not in vars(model)
    assert nn.Linear.forward.__code__ is linear


def test_copies_and_pickles_of_a_traced_model_work_and_are_not_traced():
    model = made()
    with sonde.trace(model, ["fc", "forward.h"]) as trace:
        twin = copy.deepcopy(model)
        loaded = pickle.loads(pickle.dumps(model))
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        x = batches(1)[0]
        out = model(x)
        assert torch.equal(twin(x), out)
        assert torch.equal(loaded(x), out)
    assert trace.results["fc"].iterations == [0]
    assert trace.results["forward.h"].iterations == [0]
    assert set(model.state_dict()) == set(made().state_dict())


def test_an_exception_in_the_method_keeps_what_was_seen_and_reaches_the_user():
    model = made()
    x = batches(1)[0]
    with sonde.trace(model, ["forward.h", "forward.scaled", "forward", "forward.y"]) as trace:
        with pytest.raises(ValueError, match="Size") as caught:
            model(x, fail=True)
        assert len([e for e in caught.traceback if e.name == "forward"]) == 1
        model(x)
    found = trace.results
    assert found["forward.scaled"].iterations == [0]
    assert torch.equal(found["forward.scaled"].values[0], found["forward.h"].values[0] * 2)
    assert found["forward"].iterations == found["forward.y"].iterations == [1]
    # The same input gives the same `h`: it has not changed.
    assert found["forward.h"].iterations == [0]
    with pytest.raises(ZeroDivisionError), sonde.trace(model, ["forward.scaled"]):
        raise ZeroDivisionError  # no warning about what was never seen comes on top


def test_early_return_finally_nested_functions_and_comprehensions():
    class Twisted(nn.Module):
        def forward(self, x):
            state = "begun"
            try:
                parts = [x * i for i in range(3)]

                def add(a):
                    nonlocal state
                    state = "added"
                    return a + 1

                x = add(parts[2])
                if x.sum() > 0:
                    state = "early"
                    return x
                state = "late"
            finally:
                i = -1  # noqa: F841
            return x - 1

    model = Twisted()
    with sonde.trace(
        model, ["forward.state", "forward.i", "forward.x", "forward.parts", "forward"]
    ) as t:
        model(torch.ones(1))
        model(-torch.ones(1))
    assert t.results["forward.state"].values == [
        *("begun", "added", "early"),
        *("begun", "added", "late"),
    ]
    assert t.results["forward.i"].values == [-1]
    assert [v.item() for v in t.results["forward.x"].values] == [1, 3, -1]
    assert [v.item() for v in t.results["forward"].values] == [3, -2]
    assert [p.item() for p in t.results["forward.parts"].values[0]] == [0, 1, 2]


def values_and_lines(model):
    with sonde.trace(model, ["forward.*", "forward", "fc.forward.input"]) as trace:
        for x in batches(3):
            model(x)
    first = Model.forward.__code__.co_firstlineno
    return {
        name: (
            [v if isinstance(v, bool) else v.tolist() for v in r.values],
            [n - first for n in r.lines],
        )
        for name, r in trace.results.items()
    }


def test_values_are_the_same_while_coverage_is_active(tmp_path):
    coverage = pytest.importorskip("coverage")
    expected = values_and_lines(made())
    assert expected["forward.h"][1] == [1, 1, 1]
    for core in ("ctrace", "pytrace"):
        measured = coverage.Coverage(data_file=None, config_file=False, include=[__file__])
        measured.set_option("run:core", core)
        measured.start()
        try:
            assert values_and_lines(made()) == expected
        finally:
            measured.stop()
        _, _, _, missing, _ = measured.analysis2(__file__)
        first = Model.forward.__code__.co_firstlineno
        assert {first + 1, first + 5, first + 6}.isdisjoint(missing)
        assert {first + 3, first + 4} <= set(missing)


def test_values_are_the_same_under_a_debugger():
    expected = values_and_lines(made())
    line = Model.forward.__code__.co_firstlineno + 5
    out = io.StringIO()
    script = io.StringIO("continue\n" + "p 'here', x.shape\ncontinue\n" * 3)
    debugger = pdb.Pdb(stdin=script, stdout=out, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    debugger.set_break(__file__, line)
    try:
        assert debugger.runcall(values_and_lines, made()) == expected
    finally:
        sys.settrace(None)
        debugger.clear_all_breaks()
    assert out.getvalue().count("('here', torch.Size([3, 4]))") == 3


# -- when ---------------------------------------------------------------------------------------


def test_every_counts_iterations_and_takes_functions_and_windows():
    model = made()
    for every, expected in [
        (2, [0, 2, 4]),
        (lambda i: i in (1, 5), [1, 5]),
        ([(0, 2), (4, 6)], [0, 1, 4, 5]),
    ]:
        with sonde.trace(model, ["forward.x"], every=every) as trace:
            for x in batches(6):
                model(x)
        assert trace.results["forward.x"].iterations == expected
    with sonde.trace(model, ["forward.x"], every=2, step=1) as trace:
        for x in batches(6):
            model(x)
    assert trace.results["forward.x"].iterations == [2, 4, 6]


def test_phases_are_counted_apart_and_followed_as_asked():
    model = made()

    def both(phase):
        with sonde.trace(model, ["forward.x"], phase=phase) as trace:
            for n, x in enumerate(batches(6)):
                model.train(n % 3 != 2)
                model(x)
        result = trace.results["forward.x"]
        return list(zip(result.phases, result.iterations, strict=True))

    assert both("train") == [("train", i) for i in range(4)]
    assert both("eval") == [("eval", 0), ("eval", 1)]
    assert sorted(both(("train", "eval"))) == sorted(both("train") + both("eval"))


def test_a_method_between_two_passes_belongs_to_the_first():
    model = made()
    with sonde.trace(model, ["loss.total", "forward.y"]) as trace:
        train(model, 3)
    assert trace.results["loss.total"].iterations == [0, 1, 2]


def test_a_model_whose_forward_is_never_called_is_stepped_by_hand():
    model = made()
    with sonde.trace(model, ["loss.total"]) as trace:
        for n in range(3):
            model.loss(torch.full((2,), float(n)))
            trace.step()
    assert [v.item() for v in trace.results["loss.total"].values] == [0, 1, 4]
    assert trace.results["loss.total"].calls == [0, 0, 0]
    assert trace.results["loss.total"].iterations == [0, 1, 2]


def test_recomputation_counts_once():
    class Checkpointed(Model):
        def forward(self, x):
            h = checkpoint(self.fc, x, use_reentrant=False)
            return self.out(h.relu())

    model = Checkpointed()
    with sonde.trace(model, ["fc", "fc.forward.input", "forward.h"], always=True) as trace:
        for x in batches(2):
            model(x).sum().backward()
    for name in ("fc", "fc.forward.input", "forward.h"):
        assert trace.results[name].iterations == [0, 1], name


# -- gradients ----------------------------------------------------------------------------------


def test_gradients_are_those_of_the_tensors_at_their_step_and_line():
    model = made()
    grads = []
    with sonde.trace(model, ["forward.h@grad", "fc.forward.self.weight@grad", "out@grad"]) as trace:
        for x in batches(3):
            model.zero_grad()
            h = model.fc(x).relu()
            h.retain_grad()
            model.loss(model.out(h)).backward()
            grads.append((h.grad.clone(), model.fc.weight.grad.clone()))
            model.zero_grad()
            model.loss(model(x)).backward()
    found = trace.results
    assert found["forward.h@grad"].iterations == [0, 1, 2]
    for n, (h_grad, _) in enumerate(grads):
        assert torch.equal(found["forward.h@grad"].values[n], h_grad)
    line = Model.forward.__code__.co_firstlineno + 1
    assert found["forward.h@grad"].lines == [line] * 3
    assert len(found["fc.forward.self.weight@grad"]) >= 3
    assert not any(p._backward_hooks for p in model.parameters())


def test_gradients_of_tensors_inside_of_a_value():
    class Pairs(nn.Module):
        def forward(self, x):
            d = {"a": x * 2, "b": [x * 3]}
            return d["a"] + d["b"][0]

    model = Pairs()
    with sonde.trace(model, ["forward.d@grad", "forward@grad"]) as trace:
        model(torch.ones(1, requires_grad=True)).sum().backward()
    assert {n: r.values[0].item() for n, r in trace.results.items()} == {
        "forward.d.a@grad": 1.0,
        "forward.d.b.0@grad": 1.0,
        "forward@grad": 1.0,
    }


# -- callbacks ----------------------------------------------------------------------------------


def test_callbacks_run_in_order_with_their_arguments_and_change_what_is_kept():
    model = nn.Sequential(nn.Identity())
    log = []

    def before_save(name, value, iteration):
        log.append(("before_save", name, value.item(), iteration))
        return value * 10

    def before_gather(name, values, iterations):
        log.append(("before_gather", name, [v.item() for v in values], list(iterations)))
        values[:] = [v + 1 for v in values]

    def after_gather(name, values, iterations, ranks):
        log.append(("after_gather", [v.item() for v in values], list(iterations), list(ranks)))
        values[:] = [sum(values)]

    def after_trace(name, values, iterations, ranks):
        log.append(("after_trace", [v.item() for v in values], list(iterations), list(ranks)))
        values.append("end")

    with sonde.trace(
        model,
        ["0"],
        gather_every=2,
        before_save=before_save,
        before_gather=[before_gather],
        after_gather=[after_gather],
        after_trace=[after_trace],
    ) as trace:
        for n in range(3):
            model(torch.tensor(float(n)))
    assert log == [
        ("before_save", "0", 0.0, 0),
        ("before_save", "0", 1.0, 1),
        ("before_gather", "0", [0.0, 10.0], [0, 1]),
        ("after_gather", [1.0, 11.0], [0, 1], [0, 0]),
        ("before_save", "0", 2.0, 2),
        ("before_gather", "0", [20.0], [2]),
        ("after_gather", [21.0], [2], [0]),
        ("after_trace", [12.0, 21.0], [0, 1, 2], [0, 0, 0]),
    ]
    assert trace.results["0"].values == [12.0, 21.0, "end"]


def test_a_callback_that_fails_is_said_once_and_changes_nothing():
    model = nn.Sequential(nn.Identity())

    def broken(name, values, iterations, ranks=None):
        values.clear()
        raise RuntimeError("no")

    trace = sonde.trace(model, ["0"], after_gather=[broken])
    with pytest.warns(sonde.SondeWarning, match="Stopped tracing `0` in `broken`.*no") as said:  # noqa: PT031
        model(torch.ones(1))
        model(torch.zeros(1))
        trace.close()
    assert len(said) == 1
    assert len(trace.results["0"]) == 2
    trace = sonde.trace(model, ["0"], before_save=lambda n, v, i: 1 / 0)
    with pytest.warns(sonde.SondeWarning, match="before_save.*ZeroDivisionError"):
        model(torch.ones(1))
    model(torch.zeros(1))
    trace.close()
    with (
        sonde.trace(model, ["0"], before_save=lambda n, v, i: 1 / 0, strict=True),
        pytest.raises(ZeroDivisionError),
    ):
        model(torch.ones(1))


def test_where_warnings_are_errors_they_come_at_the_end_and_not_in_the_model(tmp_path):
    model = nn.Sequential(nn.Identity())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for into in ("memory", tmp_path / "x.h5"):
            trace = sonde.trace(
                model, ["0"], before_save=lambda n, v, i: 1 / 0, budget_bytes=200, into=into
            )
            for n in range(3):
                model(torch.full((2,), float(n)))
            with pytest.raises(sonde.SondeWarning, match="ZeroDivision"):
                trace.close()
            assert not model[0]._forward_hooks


def test_a_callback_that_makes_a_new_tensor_is_called_once_per_value():
    model = made()
    with sonde.trace(model, ["forward.h"], before_save=lambda n, v, i: v.clone() * 2) as trace:
        for x in batches(2):
            model(x)
    assert trace.results["forward.h"].iterations == [0, 1]


def test_stack_and_stack_padded():
    values = [torch.ones(2, 3), torch.ones(4)]
    stack_padded("x", values, [0, 1])
    assert values[0].shape == (2, 2, 4)
    assert values[0][0].tolist() == [[1, 1, 1, 0], [1, 1, 1, 0]]
    assert values[0][1].tolist() == [[1, 1, 1, 1], [0, 0, 0, 0]]
    values = []
    stack_padded("x", values, [], [])
    assert values[0].shape == (0,)
    values = [1, 2.5]
    stack("x", values, [0, 1])
    assert values[0].tolist() == [1.0, 2.5]
    values = [torch.ones(2, 3, 4), torch.arange(8).reshape(2, 2, 2)]
    mean_over(0, 1)("x", values, [0], [0])
    assert [v.shape for v in values] == [(4,), (2,)]
    assert values[1].tolist() == [3.0, 4.0]
    values = [torch.ones(3, dtype=torch.float8_e4m3fn)]
    mean_over()("x", values, [0])
    assert values[0].item() == 1.0
    with pytest.raises(sonde.SondeError, match="dimensions"):
        mean_over("a")


# -- surroundings -------------------------------------------------------------------------------


def test_threads_and_replicas_are_seen():
    model = made()
    replicas = [model._replicate_for_data_parallel() for _ in range(3)]
    for replica in replicas:
        for name, parameter in model.fc.named_parameters():
            setattr(replica.fc, name, parameter)
        replica._modules = {n: m._replicate_for_data_parallel() for n, m in model._modules.items()}
        for name, module in replica._modules.items():
            for p, value in model._modules[name].named_parameters():
                setattr(module, p, value)
    xs = batches(3)
    with sonde.trace(model, ["forward.h", "fc"], always=True) as trace:
        threads = [
            threading.Thread(target=lambda r=r, x=x: r(x))
            for r, x in zip(replicas, xs, strict=True)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    expected = sorted(model.fc(x).relu().sum().item() for x in xs)
    assert sorted(v.sum().item() for v in trace.results["forward.h"].values) == expected
    assert len(trace.results["fc"]) == 3


def test_results_can_be_looked_at_while_the_trace_goes_on():
    model = made()
    with sonde.trace(model, ["forward.x"]) as trace:
        for n, x in enumerate(batches(400), 1):
            model(x)
            if n % 100 == 0:
                assert len(trace.results["forward.x"]) == n
                assert list(trace.results) == ["forward.x"]


def test_a_variable_that_was_deleted_is_let_go_of():
    import weakref

    alive = []

    class Frugal(nn.Module):
        def forward(self, x):
            h = x * 2
            alive.append(weakref.ref(h))
            del h
            alive.append(alive[0]() is not None)
            y = x + 1
            return y

    model = Frugal()
    with sonde.trace(model, ["forward.h", "forward.y"], before_save=lambda n, v, i: v.sum()):
        model(torch.ones(2))
    assert alive[1] is False


def test_two_traces_of_one_model_do_not_disturb_each_other():
    model = made()
    first = sonde.trace(model, ["forward.h"])
    model(batches(1)[0])
    second = sonde.trace(model, ["forward.h", "forward.y"])
    model(batches(2)[1])
    first.close()
    model(batches(3)[2])
    second.close()
    model(batches(1)[0])
    assert first.results["forward.h"].iterations == [0, 1]
    assert second.results["forward.h"].iterations == [0, 1]
    assert "forward.y" not in first.results


def test_another_model_of_the_same_class_is_not_traced():
    model, other = made(), made()
    with sonde.trace(model, ["forward.x"]) as trace:
        other(torch.ones(1, 4))
        model(torch.zeros(1, 4))
        other(torch.ones(1, 4))
    assert [v.sum().item() for v in trace.results["forward.x"].values] == [0.0]


def test_off_by_the_environment(monkeypatch):
    monkeypatch.setenv("SONDE", "off")
    model = made()
    with sonde.trace(model, ["no.such.path"]) as trace:
        model(batches(1)[0])
        trace.step()
        assert trace.flush()
    assert len(trace.results) == 0
    assert not model._forward_hooks


def test_results_know_the_nearest_name():
    model = made()
    with sonde.trace(model, ["forward.h"]) as trace:
        model(batches(1)[0])
    with pytest.raises(KeyError, match=r"`forward\.g` was not seen.*`forward\.h`"):
        trace.results["forward.g"]
    assert "1 values" in repr(trace)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": 0}, "`every`"),
        ({"gather_every": 0}, "`gather_every`"),
        ({"budget_bytes": 0}, "`budget_bytes`"),
        ({"into": "somewhere"}, "`into`"),
        ({"into": "run"}, "needs a watch"),
        ({"phase": ()}, "`phase`"),
        ({"step": -1}, "`step`"),
        ({"timeout_s": 0}, "`timeout_s`"),
        ({"before_save": [3]}, "`before_save`"),
        ({"after_trace": 3}, "`after_trace`"),
    ],
)
def test_wrong_arguments_are_errors_at_the_start(options, says):
    model = made()
    with pytest.raises(sonde.SondeError, match=says):
        sonde.trace(model, ["forward.h"], **options)
    assert Model.forward.__code__.co_name == "forward"
    assert not model._forward_pre_hooks
    with pytest.raises(sonde.SondeError, match=r"must be a torch\.nn\.Module"):
        sonde.trace(Model, ["forward.h"])


def test_a_forked_child_is_not_traced():
    model = made()
    with sonde.trace(model, ["forward.h"]) as trace:
        model(batches(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 1
            try:
                for x in batches(3):
                    model(x)
                code = 0 if len(trace.results) == 0 else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        model(batches(3)[2])
    assert trace.results["forward.h"].iterations == [0, 1]


def test_tensors_are_not_kept_alive_by_a_trace_into_nothing():
    import gc
    import weakref

    model = made()
    alive = []
    with sonde.trace(model, ["forward.h", "forward.y"], before_save=lambda n, v, i: 0):
        for x in batches(3):
            y = model(x)
            alive.append(weakref.ref(y))
            del y
        gc.collect()
        assert [r() for r in alive] == [None, None, None]


# -- compiled models ----------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Linear):
    """The compiler leaves modules of torch itself alone, so here is one of ours."""

    def forward(self, input):
        return super().forward(input) * 1.0


def made_of_blocks():
    torch.manual_seed(0)
    model = Model()
    model.fc, model.out = Block(4, 4), Block(4, 2)
    return model


def compile_whole(model):
    return torch.compile(model, backend="eager")


def compile_in_place(model):
    model.compile(backend="eager")
    return model


def compile_blocks(model):
    model.fc.compile(backend="eager")
    model.out.compile(backend="eager")
    return model


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("compile", [compile_whole, compile_in_place, compile_blocks])
def test_a_compiled_model_is_seen_also_when_it_was_compiled_before(
    fresh_compiler, compile, is_warm
):
    compiled = compile(made_of_blocks())
    x, y = batches(2)
    if is_warm:
        compiled(x)
    with pytest.warns(sonde.SondeWarning, match="torch.compile.*force_eager"):
        trace = sonde.trace(compiled, ["forward.h", "fc", "forward", "fc.forward.input"])
    plain = made_of_blocks()
    with trace:
        outputs = [compiled(x), compiled(y)]
    for name in ("forward.h", "fc", "forward", "fc.forward.input"):
        assert trace.results[name].iterations == [0, 1], name
    assert torch.equal(trace.results["forward.h"].values[1], plain.fc(y).relu())
    assert torch.equal(trace.results["forward"].values[0], outputs[0])
    torch._dynamo.utils.counters.clear()
    assert torch.allclose(compiled(x), outputs[0])
    # With the trace gone it is compiled as if there had never been one.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not torch._dynamo.utils.counters["graph_break"]


def test_what_is_compiled_in_one_piece_is_refused_with_the_remedy(fresh_compiler):
    compiled = torch.compile(made_of_blocks(), backend="eager", fullgraph=True)
    in_place = made_of_blocks()
    in_place.out.compile(backend="eager", fullgraph=True)
    x = batches(1)[0]
    for each in (compiled, in_place):
        with pytest.raises(sonde.SondeError, match=r"fullgraph=True.*force_eager"):
            sonde.trace(each, ["forward.h"])
        each(x)
        with torch.compiler.set_stance("force_eager"):
            with pytest.warns(sonde.SondeWarning, match="Compiled"):
                trace = sonde.trace(each, ["forward.h", "fc.forward.input", "out"])
            with trace:
                for x in batches(2):
                    each(x)
        for name in ("forward.h", "fc.forward.input", "out"):
            assert trace.results[name].iterations == [0, 1], name
        each(x)
