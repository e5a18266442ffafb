"""Sinks: what they get by name is what the run has, and none of them touches anything else."""

import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sonde
from sonde.sinks import feed

STATS = ("rms", "max_abs", "mean", "min", "nonfinite", "count", "p99", "rm8")


class Kept(sonde.Sink):
    """Keeps all it gets."""

    defaults = {"batch_s": 0.01}

    def __init__(self, **options):
        super().__init__(**options)
        self.readings = []
        self.threads = set()
        self.run = self.reason = None

    def start(self, run):
        self.run = run

    def write(self, readings):
        self.threads.add(threading.current_thread().name)
        self.readings += readings

    def close(self, reason):
        self.reason = reason

    def numbers(self, phase="train"):
        """Numbers by step and key."""
        return {
            (reading.step, key): value
            for reading in self.readings
            if reading.phase == phase
            for key, value in reading.numbers.items()
        }

    def histograms(self):
        return {
            (reading.step, key): histogram
            for reading in self.readings
            for key, histogram in reading.histograms.items()
        }

    @property
    def keys(self):
        return {key for _, key in self.numbers()}


class Stuck(Kept):
    """Hangs in `write` until it is let go."""

    defaults = {"timeout_s": 0.1}

    def __init__(self, **options):
        super().__init__(**options)
        self.go = threading.Event()
        self.began = threading.Event()

    def write(self, readings):
        self.began.set()
        self.go.wait()
        super().write(readings)


class Angry(Kept):
    """Raises in one of its methods, the first so many times."""

    def __init__(self, method, times=10**9, error=RuntimeError, **options):
        super().__init__(**options)
        self.method, self.times, self.error = method, times, error

    def _rage(self, method):
        if method == self.method and self.times > 0:
            self.times -= 1
            raise self.error(f"no {method}")

    def start(self, run):
        self._rage("start")
        super().start(run)

    def write(self, readings):
        self._rage("write")
        super().write(readings)

    def close(self, reason):
        self._rage("close")
        super().close(reason)

    def key(self, series):
        self._rage("key")
        return super().key(series)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8)), nn.ReLU())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def train(watch, model, optimizer, steps=5, values=lambda x, step: x):
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = values(torch.randn(16, 4, generator=generator), step)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.log(loss=loss)


def watched(tmp_path, model, sinks, steps=5, values=lambda x, step: x, **options):
    options = {"every": 1, "dir": tmp_path} | options
    optimizer = sgd(model)
    with sonde.watch(model, optimizer, sinks=sinks, **options) as watch:
        train(watch, model, optimizer, steps, values)
    return sonde.open(watch.path)


def odd(x, step):
    """Some steps have values that are not finite, or huge."""
    x[0, 0] = {3: math.nan, 5: math.inf, 7: -math.inf, 9: 3e38}.get(step, x[0, 0])
    return x


def heard(unheard):
    """The warnings so far."""
    found = list(unheard)
    unheard.clear()
    return found


def events(run, code):
    found = run.sql("select message, count from events where code = ?", [code])
    return found.values.tolist()


# -- what a sink gets --------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_run(tmp_path, model):
    sink = Kept(stats=STATS, kinds="all", max_series=10_000)
    run = watched(tmp_path, model, [sink], steps=20, values=odd)
    found = sink.numbers()
    table = run.stats("*", stat=list(STATS))
    flat = {"output": "activation", "param": "parameter", "param_grad": "gradient"}
    expected = {}
    for row in table.to_dict("records"):
        kind = flat.get(row["kind"], row["kind"])
        is_parameter = row["kind"] in ("param", "param_grad", "update", "optim")
        path = f"{row['module']}.{row['slot']}" if is_parameter else row["module"]
        for stat in STATS:
            key = f"{kind}/{path or '[root module]'}/{stat}"
            expected[row["step"], key] = row[stat]
    assert len(expected) == 20 * 24 * len(STATS)
    ours = {at: found[at] for at in expected}
    np.testing.assert_array_equal(list(ours.values()), list(expected.values()))
    assert any(math.isnan(v) for v in ours.values())
    scalars = run.scalars("*")
    for row in scalars.to_dict("records"):
        np.testing.assert_equal(found.pop((row["step"], row["name"])), row["value"])
    assert set(found) == set(expected)


def test_histograms_come_on_request_and_are_those_of_the_run(tmp_path, model):
    sink = Kept(histograms="2*", bins=16, max_series=10_000)
    run = watched(tmp_path, model, [sink], values=odd)
    assert {key for _, key in sink.histograms()} == {
        *("activation/2", "activation/2.0"),
        *("parameter/2.0.weight", "parameter/2.0.bias"),
        *("gradient/2.0.weight", "gradient/2.0.bias"),
    }
    for step in range(5):
        ours = sink.histograms()[step, "gradient/2.0.weight"]
        theirs = run.sketch("2.0.weight", kind="param_grad", step=step).histogram(16)
        np.testing.assert_allclose(ours.counts, theirs.counts, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(ours.edges, theirs.edges)
        assert (ours.nans, ours.infs, ours.zeros) == (theirs.nans, theirs.infs, theirs.zeros)
    assert Kept().histograms() == {}


def test_metrics_and_phases_are_told_apart(tmp_path, model):
    sink = Kept(prefix="sonde")
    optimizer = sgd(model)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path, sinks=[sink]) as watch:
        watch.add_metric("largest", lambda x: x.abs().max(), where="0")
        train(watch, model, optimizer, 2)
        with watch.phase("check"), torch.no_grad():
            model(torch.ones(2, 4))
            watch.log(accuracy=0.5)
    run = sonde.open(watch.path)
    found = sink.numbers()
    ((largest,),) = run.metrics("largest", steps=1, phase="train")[["value"]].values.tolist()
    assert found[1, "sonde/metric/0/largest"] == largest
    assert found[1, "sonde/loss"] == run.scalars("loss")["value"].tolist()[1]
    assert not any("check" in key for _, key in found)
    checked = sink.numbers("check")
    assert checked[1, "sonde/check/accuracy"] == 0.5
    rms = run.stats("0", kind="output", stat="rms", phase="check")["rms"].tolist()
    assert [checked[1, "sonde/check/activation/0/rms"]] == rms


def test_only_what_is_asked_for_comes(tmp_path, model):
    sinks = [
        Kept(stats=["rms"], kinds="output", include="2*", exclude="2.0", scalars=()),
        Kept(stats=(), scalars="lo*"),
        Kept(kinds=(), scalars=(), metrics=(), histograms="*"),
        Kept(phases="eval"),
    ]
    run = watched(tmp_path, model, sinks)
    assert sinks[0].keys == {"activation/2/rms"}
    assert sinks[1].keys == {"loss"}
    assert sinks[2].readings == []
    assert sinks[3].readings == []
    assert events(run, "sink_limited") == []


def test_a_sink_names_series_as_it_likes(tmp_path, model):
    class Neptune(Kept):
        def key(self, series):
            kinds = {"output": "activations", "param_grad": "gradients", "param": "parameters"}
            if series.kind is None:
                return series.key
            return f"run/debug/{kinds[series.kind]}/{series.path}/{series.name}"

    sink = Neptune(stats=["mean"], include="0*")
    watched(tmp_path, model, [sink])
    assert {"run/debug/activations/0/mean", "run/debug/gradients/0.weight/mean"} <= sink.keys


def test_a_sink_learns_of_the_run_and_how_it_ended(tmp_path, model):
    sink = Kept()
    run = watched(tmp_path, model, [sink], name="mine", config={"lr": 0.01})
    assert (sink.run.name, sink.run.path, sink.run.rank) == ("mine", Path(run.path), 0)
    assert sink.run.config == {"lr": 0.01}
    assert sink.reason == "finished"


def test_all_calls_come_from_a_thread_of_the_sink_s_own(tmp_path, model):
    sinks = [Kept(name="first"), Kept()]
    watched(tmp_path, model, sinks)
    assert [sink.threads for sink in sinks] == [{"sonde-sink-first"}, {"sonde-sink-Kept"}]
    assert not [t for t in threading.enumerate() if t.name.startswith("sonde-sink")]


def test_readings_are_written_together(tmp_path, model):
    class Counted(Kept):
        defaults = {"batch_s": 60.0}
        calls = 0

        def write(self, readings):
            self.calls += 1
            super().write(readings)

    sink = Counted()
    watched(tmp_path, model, [sink], steps=20)
    assert sink.calls == 1
    assert [reading.step for reading in sink.readings] == list(range(20))
    assert all("loss" in reading.numbers for reading in sink.readings)


# -- how much ----------------------------------------------------------------------------------


def test_a_large_model_has_at_most_300_series_by_default(tmp_path):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(200)))
    sink, chosen = Kept(), Kept(include="1*", stats=["rms"], max_series=2000)
    with sonde.watch(model, every=1, dir=tmp_path, sinks=[sink, chosen]) as watch:
        model(torch.ones(1, 2)).sum().backward()
        watch.step()
    tensors = {key for key in sink.keys if "/" in key}
    assert len(tensors) == 300
    kinds = [key.partition("/")[0] for key in tensors]
    assert [kinds.count(k) for k in ("activation", "parameter", "gradient")] == [100] * 3
    outputs = {key.split("/")[1] for key in tensors if key.startswith("activation")}
    assert outputs == {"[root module]", *(str(i) for i in range(49))}  # shallow modules first
    assert len(chosen.keys) > 600
    ((text, _),) = events(sonde.open(watch.path), "sink_limited")
    assert text.startswith("The sink `Kept` gets 300 of ")
    assert "raise `max_series`" in text


def test_more_than_fits_what_was_chosen_is_a_warning(tmp_path, model, unheard):
    sink = Kept(stats=["rms"], scalars=(), max_series=3)
    watched(tmp_path, model, [sink])
    assert len({key for key in sink.keys if "/" in key}) == 3
    (text,) = heard(unheard)
    assert text.startswith("The sink `Kept` gets 3 of 14 series of tensors")


# -- what goes wrong ---------------------------------------------------------------------------


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


@pytest.fixture
def untouched(model, tmp_path):
    """Asserts that sinks change neither training nor the run."""
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8)), nn.ReLU())
    plain.load_state_dict(model.state_dict())
    alone = watched(tmp_path, plain, [], name="alone")

    def check(run):
        for a, b in zip(weights(plain), weights(model), strict=True):
            assert torch.equal(a, b)
        assert run.stats("*").equals(alone.stats("*"))
        assert run.scalars("*").equals(alone.scalars("*"))
        assert run.status == "finished"

    return check


@pytest.mark.parametrize("method", ["start", "write", "close", "key"])
def test_a_sink_that_raises_is_reported_once_and_nothing_else_notices(
    tmp_path, model, untouched, unheard, method
):
    angry, kept = Angry(method), Kept()
    run = watched(tmp_path, model, [angry, kept])
    untouched(run)
    assert {reading.step for reading in kept.readings} == set(range(5))
    (warned,) = heard(unheard)
    assert warned.startswith("The sink `Angry` failed: RuntimeError")
    ((text, count),) = events(run, "sink_failed")
    assert f"RuntimeError('no {method}')" in text
    assert count == 1
    lost = events(run, "sink_lost")
    assert (lost == []) == (method == "close")
    assert angry.reason == (None if method == "close" else "finished")


def test_a_sink_that_fails_now_and_then_gets_the_rest(tmp_path, model, unheard):
    class Flaky(Kept):
        defaults = {"batch_s": 0.0}
        calls = failed = 0

        def write(self, readings):
            self.calls += 1
            if self.calls % 2:
                self.failed += len(readings)
                raise OSError("no network")
            super().write(readings)

    sink = Flaky(scalars=())
    watched(tmp_path, model, [sink], steps=40)
    assert len(sink.readings) + sink.failed == 40
    assert sink.reason == "finished"
    assert len(heard(unheard)) == 1


def test_a_sink_that_exits_ends_nothing(tmp_path, model, untouched, unheard):
    run = watched(tmp_path, model, [Angry("write", error=SystemExit)])
    untouched(run)
    (warned,) = heard(unheard)
    assert warned.startswith("The sink `Angry` failed: SystemExit('no write')")


def test_a_sink_that_hangs_holds_nothing_back(tmp_path, model, untouched, unheard):
    stuck, kept = Stuck(), Kept()
    run = watched(tmp_path, model, [stuck, kept])
    untouched(run)
    assert {reading.step for reading in kept.readings} == set(range(5))
    (warned,) = heard(unheard)
    assert warned.startswith("The sink `Stuck` did not finish in time.")
    ((text, lost),) = events(run, "sink_lost")
    assert lost >= 5
    assert f"{int(lost)} records were not delivered" in text
    stuck.go.set()


def test_what_a_slow_sink_has_no_room_for_is_dropped_and_counted(
    tmp_path, model, untouched, unheard, monkeypatch
):
    monkeypatch.setattr(feed, "_CAPACITY_BYTES", 2000)
    slow = Stuck(timeout_s=60.0, scalars=(), batch_s=0.0)
    optimizer = sgd(model)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path, sinks=[slow]) as watch:
        train(watch, model, optimizer)
        watch.flush()
        slow.go.set()
    run = sonde.open(watch.path)
    untouched(run)
    ((_, lost),) = events(run, "sink_lost")
    assert 0 < lost < 5
    assert len(slow.readings) == 5 - lost
    (warned,) = heard(unheard)
    assert warned.startswith("The sink `Stuck` is too slow")


def test_a_sink_that_is_switched_off_is_still_closed(tmp_path, model, unheard):
    sink = Angry("write", batch_s=0.0, scalars=())
    run = watched(tmp_path, model, [sink], steps=30)
    ((_, lost),) = events(run, "sink_lost")
    assert lost == 30
    assert sink.reason == "finished"
    assert len(heard(unheard)) == 1


# -- what is wrong with the arguments ----------------------------------------------------------


class Silent(sonde.Sink):
    pass


@pytest.mark.parametrize(
    ("sink", "text"),
    [
        (Kept, "takes instances of sonde.Sink, got the class Kept"),
        (3, "takes instances of sonde.Sink, got 3"),
        (Silent(), "`Silent` cannot be used: its class has no method `write`"),
        (Kept(stats=["rmse"]), "`Kept` cannot be used: Unknown statistic `rmse`"),
        (Kept(kinds="weights"), "`Kept` cannot be used: .*no kind or preset 'weights'"),
        (Kept(include="re:("), "`Kept` cannot be used: `include` has a bad regular expression"),
        (Kept(max_series=0), "`max_series` must be an int of 1 or more, got 0"),
    ],
)
def test_a_sink_that_makes_no_sense_is_refused_before_anything_happens(tmp_path, model, sink, text):
    with pytest.raises(sonde.SondeError, match=text):
        sonde.watch(model, dir=tmp_path, sinks=[sink])
    assert list(tmp_path.iterdir()) == []
    assert not model._forward_hooks


def test_a_sink_is_given_once(tmp_path, model):
    sink = Kept()
    with pytest.raises(sonde.SondeError, match="`Kept` is given twice"):
        sonde.watch(model, dir=tmp_path, sinks=[sink, sink])


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="Kept has no option `statistics`"):
        Kept(statistics=["rms"])
