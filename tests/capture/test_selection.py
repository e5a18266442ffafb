"""What is recorded: kinds, patterns, types, predicates; names as a user knows them."""

import re

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import sonde


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return x + self.norm(self.fc(x))


def build():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(4, 2))


def names(watching, model, **options):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer, **options)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    watch.close()
    return set(memory.at(0))


def modules(found):
    return {name.split("/")[0] for name in found}


def kinds(found):
    return {name.split("/")[1] for name in found}


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("output", {"output"}),
        (["input", "param_grad"], {"input", "param_grad"}),
        ("activations", {"input", "output"}),
        ("gradients", {"input_grad", "output_grad", "param_grad"}),
        ("parameters", {"param", "param_grad", "update", "optim"}),
        ("default", {"output", "output_grad", "param", "param_grad", "update", "optim"}),
        (["activations", "update"], {"input", "output", "update"}),
        ({"optim"}, {"optim"}),
    ],
)
def test_kinds_and_presets_record_that_and_no_more(watching, log, expected):
    assert kinds(names(watching, build(), log=log)) == expected


ALL = {".", "0", "0.fc", "0.norm", "1", "1.fc", "1.norm", "2"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ALL),
        ({"include": "0"}, {"0"}),
        ({"include": "0*"}, {"0", "0.fc", "0.norm"}),
        ({"include": "*.fc"}, {"0.fc", "1.fc"}),
        ({"include": ["0.fc", "2"]}, {"0.fc", "2"}),
        ({"include": r"re:^\d$"}, {"0", "1", "2"}),
        ({"include": re.compile("norm")}, {"0.norm", "1.norm"}),
        ({"include": nn.Linear}, {"0.fc", "1.fc", "2"}),
        ({"include": (nn.LayerNorm, "2")}, {"0.norm", "1.norm", "2"}),
        ({"include": lambda path, module: path == "1"}, {"1"}),
        ({"exclude": nn.Linear}, {".", "0", "0.norm", "1", "1.norm"}),
        ({"exclude": "re:."}, {"."}),
        ({"include": "0*", "exclude": "*norm"}, {"0", "0.fc"}),
        ({"include": ""}, {"."}),
    ],
)
def test_selection_by_pattern_type_and_predicate(watching, options, expected):
    found = names(watching, build(), **options)
    assert modules(n for n in found if "/output/" in n) == expected
    assert modules(found) <= expected | {"."}


def test_parameters_follow_their_module_or_go_by_their_own_name(watching):
    found = names(watching, build(), include="0.fc", log="parameters")
    assert modules(found) == {"0.fc"}
    found = names(watching, build(), include="*.bias", log="all")
    assert {n.split("/")[1] for n in found} == {"param", "param_grad", "update", "optim"}
    assert {n for n in found if "/param/" in n} == {
        f"{m}/param/bias" for m in ("0.fc", "0.norm", "1.fc", "1.norm", "2")
    }
    found = names(watching, build(), exclude="*.bias", log=["param", "output"])
    assert "0.fc/param/weight" in found
    assert "0.fc/param/bias" not in found
    assert modules(n for n in found if "/output/" in n) == ALL


def test_a_recorded_module_costs_nothing_for_what_is_not_asked(watching):
    """A module of torch's own of which only outputs are wanted has one hook; unselected none."""
    model = build()
    watch, _ = watching(model, log="output", include="0*")
    assert len(model[0].fc._forward_hooks) == 1
    assert len(model[0].fc._forward_pre_hooks) == 0
    assert len(model[0]._forward_pre_hooks) == 1
    assert len(model[2]._forward_hooks) == 0
    watch.close()


# -- names -------------------------------------------------------------------------------------


def test_wrappers_leave_no_trace_in_names(watching):
    plain = names(watching, build())
    assert names(watching, nn.DataParallel(build())) == plain
    wrapped = build()
    wrapped[0] = checkpoint_wrapper(wrapped[0])
    assert {n for n in names(watching, wrapped) if "grad" not in n} == {
        n for n in plain if "grad" not in n
    }
    both = build()
    both[1].fc = checkpoint_wrapper(both[1].fc)
    assert modules(names(watching, nn.DataParallel(both))) == modules(plain)


def test_watching_the_inside_or_the_outside_of_a_wrapper_is_the_same(watching):
    model = build()
    outer = nn.DataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())
    _watch, memory = watching(model, optimizer)
    outer(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    sonde.unwatch(outer)
    assert memory.closed == "finished"
    assert modules(memory.at(0)) == ALL


class Holder(nn.Module):
    """A user's own attributes that are called like those of wrappers."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(4, 4)
        self.inner = nn.ModuleDict({"module": nn.Linear(4, 4)})

    def forward(self, x):
        return self.inner["module"](self.module(x))


def test_a_users_own_attribute_called_module_keeps_its_name(watching):
    found = names(watching, Holder())
    assert {"module", "inner.module"} <= modules(found)


def test_unusual_names_are_kept_as_they_are(watching):
    model = nn.Sequential()
    odd = ["weird name", "Ünï→", "slash/inside", "new\nline", "<b>", "x" * 2000]
    for name in odd:
        model.add_module(name, nn.Linear(4, 4))
    found = names(watching, model, log="output")
    assert found == {"./output/0"} | {f"{name}/output/0" for name in odd}


# -- mistakes ----------------------------------------------------------------------------------


def hooks_on(model):
    return sum(
        len(getattr(m, d))
        for m in model.modules()
        for d in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )


MISTAKES = [
    ({"model": "a string"}, r"`model` must be a torch.nn.Module.*, got str"),
    ({"model": nn.Linear}, r"`model` must be a torch.nn.Module.*, got the class Linear"),
    (
        {"include": "nothing*"},
        r"leave no module and no parameter of Sequential.*paths look like: 0",
    ),
    ({"exclude": "*"}, r"leave no module and no parameter"),
    ({"include": "re:("}, r"`include` has a bad regular expression '\('"),
    ({"exclude": "re:[a"}, r"`exclude` has a bad regular expression"),
    ({"include": 3}, r"`include` takes globs.*got 3"),
    ({"include": lambda path: True}, r"`include` or `exclude` raised TypeError"),
    ({"log": "outputs"}, r"`log` has no kind or preset 'outputs'.*output_grad.*default"),
    ({"log": []}, r"`log` is empty"),
    ({"log": "local"}, r"no kind or preset 'local'"),
    ({"every": 0}, r"`every` must be at least 1 step, got 0"),
    ({"every": -5}, r"`every` must be at least 1 step"),
    ({"every": "10"}, r"`every` must be a number of steps.*got '10'"),
    ({"every": 2.5}, r"`every` must be a number of steps"),
    ({"every": True}, r"`every` must be a number of steps"),
    ({"every": [(1, 2, 0)]}, r"A window of `every`.*\(1, 2, 0\)"),
    ({"every": [5]}, r"A window of `every`"),
    ({"optimizer": "adam"}, r"`optimizer` must be a torch.optim.Optimizer.*got str"),
    ({"optimizer": [torch.optim.SGD]}, r"got the class SGD"),
    (
        {"phases": ("train", "validation")},
        r"`phases` takes `train`, `eval` and `no_grad`.*watch.phase",
    ),
    ({"max_calls": 0}, r"`max_calls` must be at least 1, got 0"),
    ({"step": -1}, r"`step` must be 0 or more, got -1"),
]


@pytest.mark.parametrize(
    ("mistake", "text"), MISTAKES, ids=[f"{next(iter(m))}-{i}" for i, (m, _) in enumerate(MISTAKES)]
)
def test_a_mistake_is_an_error_at_once_and_changes_nothing(tmp_path, mistake, text):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {"model": model, "optimizer": optimizer, **mistake}
    with pytest.raises(sonde.SondeError, match=re.compile(text, re.DOTALL)):
        sonde.watch(dir=tmp_path / "runs", **arguments)
    assert hooks_on(model) == 0
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not (tmp_path / "runs").exists()


def test_a_directory_that_cannot_be_written_is_an_error_at_once(tmp_path):
    model = build()
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(sonde.RunError):
        sonde.watch(model, dir=tmp_path / "file")
    assert issubclass(sonde.RunError, sonde.SondeError)
    assert hooks_on(model) == 0


def test_a_run_that_does_not_exist_cannot_be_resumed(tmp_path):
    model = build()
    with pytest.raises(sonde.RunError):
        sonde.watch(model, dir=tmp_path, name="none", resume=True)
    assert hooks_on(model) == 0


def test_a_wrapper_around_an_optimizer_is_seen_through(watching):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    watch, memory = watching(model, scheduler)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    scheduler.step()
    watch.close()
    assert "2/update/weight" in memory.at(0)


def test_a_torch_that_is_too_old_is_refused_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    with pytest.raises(sonde.SondeError, match=r"needs torch 2\.11 or newer, and this is 2\.6\.0"):
        sonde.watch(nn.Linear(2, 2), dir=tmp_path)
    assert not list(tmp_path.iterdir())
