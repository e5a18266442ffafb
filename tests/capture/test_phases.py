"""Passes outside training, and branches of it: which are recorded, and under which step."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sonde


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def evaluate(model, rows=5):
    model.eval()
    with torch.no_grad():
        model(torch.ones(rows, 4))
        model(torch.ones(rows, 4))
    model.train()


def steps_of(memory, phase):
    return [s for s, p in memory.steps if p == phase]


# -- evaluation --------------------------------------------------------------------------------


def test_an_evaluation_after_a_recorded_step_is_recorded_under_it(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=10, phases=("train", "eval"))
    for i in range(25):
        train(model, optimizer)
        if i % 10 == 0:
            evaluate(model, rows=i + 1)
    watch.close()
    assert steps_of(memory, "eval") == [0, 10, 20]
    assert memory.at(20, "eval")["./output/0"].count == 2 * 21 * 2
    assert memory.at(10, "eval")["0/output/0"].count == 2 * 11 * 4
    assert steps_of(memory, "train") == [0, 10, 20]
    assert memory.at(10)["0/output/0"].count == 12


def test_an_evaluation_before_a_due_step_is_recorded_under_it(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=10, phases=("train", "eval"))
    for i in range(25):
        if i % 10 == 0:
            evaluate(model)
        train(model, optimizer)
    watch.close()
    assert steps_of(memory, "eval") == [0, 10, 20]
    assert memory.at(10, "eval")["./output/0"].count == 20


def test_a_step_has_one_evaluation_though_there_was_one_on_either_side(watching, model, optimizer):
    """Two evaluations of different weights are not mixed. What is left out is counted."""
    watch, memory = watching(model, optimizer, every=10, phases=("train", "eval"))
    evaluate(model)
    for _ in range(21):
        train(model, optimizer)
        evaluate(model)
    watch.close()
    assert steps_of(memory, "eval") == [0, 10, 20]
    for i in (0, 10, 20):
        assert memory.at(i, "eval")["./output/0"].count == 20
    skipped = memory.counted("skipped")
    assert sum(n for (where, _), n in skipped.items() if where == "eval") == 19


def test_an_evaluation_that_is_left_out_is_counted_with_the_remedy(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=10, phases=("train", "eval"))
    for _ in range(5):
        train(model, optimizer)
    evaluate(model)
    watch.close()
    assert steps_of(memory, "eval") == []
    ((where, text), count), *others = memory.counted("skipped").items()
    assert (where, count, others) == ("eval", 1, [])
    assert "phases={'train': 10, 'eval': 1}" in text


def test_a_phase_with_a_schedule_of_its_own_is_recorded_whole(watching, model, optimizer):
    """Every evaluation, whatever is recorded of training."""
    watch, memory = watching(model, optimizer, every=10, phases={"train": 10, "eval": 1})
    evaluate(model)
    for i in range(1, 26):
        train(model, optimizer)
        if i % 7 == 0:
            evaluate(model, rows=i)
    watch.close()
    assert steps_of(memory, "train") == [0, 10, 20]
    assert steps_of(memory, "eval") == [0, 6, 13, 20]
    assert memory.at(13, "eval")["0/output/0"].count == 2 * 14 * 4
    whole = {n for n in memory.at(20, "eval") if "/output/" in n}
    assert whole == {"./output/0", "0/output/0", "1/output/0", "2/output/0"}
    assert memory.counted("skipped") == {}


def test_schedules_of_phases_can_be_anything_that_every_takes(watching, model, optimizer):
    phases = {"train": [(2, 4)], "eval": lambda step: step == 3, "validation": 2}
    watch, memory = watching(model, optimizer, every=10, phases=phases)
    assert watch.every == [(2, 4)]
    for _ in range(5):
        train(model, optimizer)
        evaluate(model)
        with watch.phase("validation"):
            evaluate(model)
        with watch.phase("test"):
            evaluate(model)
    watch.close()
    assert steps_of(memory, "train") == [2, 3]
    assert steps_of(memory, "eval") == [3]
    assert steps_of(memory, "validation") == [0, 2, 4]
    assert steps_of(memory, "test") == [0, 1, 2, 3, 4]


def test_evaluation_alone_records_nothing_of_training(watching, model, optimizer):
    watch, memory = watching(model, optimizer, phases={"eval": 1}, log="default")
    train(model, optimizer)
    evaluate(model)
    train(model, optimizer)
    watch.close()
    assert memory.steps == [(0, "eval")]


@pytest.mark.parametrize(
    ("phases", "text"),
    [
        ("validation", "takes `train`, `eval` and `no_grad`, got 'validation'"),
        ({"train": 0}, "at least 1 step, got 0"),
        ({"eval": "often"}, "`every` must be"),
        ({3: 1}, "A phase is a name, got 3"),
    ],
)
def test_phases_that_cannot_be_are_errors(model, optimizer, tmp_path, phases, text):
    with pytest.raises(sonde.SondeError, match=text):
        sonde.watch(model, optimizer, phases=phases, dir=tmp_path)


def test_two_schedules_of_training_are_an_error(model, optimizer, tmp_path):
    with pytest.raises(sonde.SondeError, match="both set the schedule of training"):
        sonde.watch(model, optimizer, every=5, phases={"train": 7}, dir=tmp_path)


def test_a_named_phase_can_have_the_step_that_the_user_names(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=100)
    train(model, optimizer)
    train(model, optimizer)
    with watch.phase("validation", step=7000):
        evaluate(model)
        watch.log(accuracy=0.5)
    train(model, optimizer)
    watch.close()
    assert steps_of(memory, "validation") == [7000]
    assert memory.scalars == {(7000, "validation"): {"accuracy": 0.5}}


def test_a_phase_whose_schedule_raises_is_left_out_and_training_goes_on(
    watching, model, optimizer, flushing
):
    def every(step):
        raise ZeroDivisionError("oops")

    watch, memory = watching(model, optimizer, every=1, phases={"train": 1, "eval": every})
    train(model, optimizer)
    with pytest.warns(sonde.SondeWarning, match="oops"), flushing(watch):
        evaluate(model)
    train(model, optimizer)
    evaluate(model)
    watch.close()
    assert memory.steps == [(0, "train"), (1, "train")]


# -- passes without gradients ------------------------------------------------------------------


class Policy(nn.Module):
    """An actor and a critic with a common body, called whole or by its parts."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.actor = nn.Linear(8, 2)
        self.critic = nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x).tanh()
        return self.actor(h), self.critic(h)

    def act(self, x):
        return self.actor(self.body(x).tanh())


@pytest.fixture
def policy():
    torch.manual_seed(0)
    return Policy()


def reinforce(policy, optimizer, rollout):
    for i in range(3):
        for k in range(4):
            rollout(policy, 10.0 * torch.ones(5, 4) * (i + k))
        actions, values = policy(torch.ones(3, 4))
        (actions.sum() + values.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def whole(policy, x):
    policy(x)


@torch.no_grad()
def by_parts(policy, x):
    policy.act(x)


@torch.inference_mode()
def in_inference_mode(policy, x):
    policy(x)


def nothing(policy, x):
    pass


@pytest.mark.parametrize("rollout", [whole, by_parts, in_inference_mode])
def test_rollouts_without_gradients_are_no_part_of_the_step(watching, policy, rollout):
    """In training mode, as they are in most loops of reinforcement learning."""
    import copy

    twin = copy.deepcopy(policy)
    found, expected = [], []
    for module, play, kept in ((policy, rollout, found), (twin, nothing, expected)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        watch, memory = watching(module, optimizer, name=f"run-{len(kept)}-{play.__name__}")
        reinforce(module, optimizer, play)
        watch.close()
        kept.append(memory)
    assert found[0].steps == expected[0].steps
    for i in range(3):
        assert found[0].at(i) == expected[0].at(i)


def test_rollouts_are_recorded_as_their_own_phase_when_asked_for(watching, policy):
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    watch, memory = watching(policy, optimizer, phases=("train", "no_grad"), log="output")
    reinforce(policy, optimizer, whole)
    watch.close()
    assert memory.at(0)["body/output/0"].count == 3 * 8
    assert memory.at(0, "no_grad")["body/output/0"].count == 4 * 5 * 8


def test_a_pass_without_gradients_inside_a_step_leaves_the_step_as_it_is(watching, policy):
    """A second look at the same model, for a target, while its loss waits for backward."""
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    watch, memory = watching(policy, optimizer, log=["output", "output_grad"])
    actions, values = policy(torch.ones(3, 4))
    whole(policy, 100 * torch.ones(7, 4))
    (actions.sum() + values.sum()).backward()
    optimizer.step()
    watch.close()
    assert memory.steps == [(0, "train")]
    assert memory.at(0)["body/output/0"].count == 24
    assert memory.at(0)["body/output_grad/0"].count == 24


def test_a_checkpoint_around_the_whole_model_is_training(watching, model, optimizer):
    """A reentrant checkpoint runs its forward without gradients."""
    watch, memory = watching(model, optimizer)
    x = torch.ones(3, 4, requires_grad=True)
    checkpoint(model, x, use_reentrant=True).sum().backward()
    optimizer.step()
    watch.close()
    assert memory.steps == [(0, "train")]
    assert memory.at(0)["0/output/0"].count == 12
    assert memory.at(0)["0/output_grad/0"].count == 12


class Reversible(torch.autograd.Function):
    """Runs a module without gradients and again in backward, as reversible networks do."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            torch.autograd.backward(ctx.module(again), grad)
        return again.grad, None


def test_a_part_that_an_autograd_function_runs_is_training(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    x = torch.ones(3, 4, requires_grad=True)
    Reversible.apply(x, model[0]).sum().backward()
    optimizer.step()
    watch.close()
    assert memory.steps == [(0, "train")]
    assert memory.at(0)["0/output/0"].count == 12


def test_a_frozen_part_that_runs_without_gradients_is_training(watching, model):
    """Features of a frozen backbone, computed outside the model's own forward."""
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    with torch.no_grad():
        features = model[0](torch.ones(3, 4))
    model[2](features).sum().backward()
    optimizer.step()
    watch.close()
    assert memory.steps == [(0, "train")]
    assert memory.at(0)["0/output/0"].count == 12
    assert memory.at(0)["2/output/0"].count == 6


def test_passes_whose_backward_comes_later_are_training(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    first, second = model(torch.ones(3, 4)), model(torch.ones(2, 4))
    (first.sum() + second.sum()).backward()
    optimizer.step()
    watch.close()
    assert memory.steps == [(0, "train")]
    assert memory.at(0)["./output/0"].count == 10


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("is_inside", [False, True], ids=["before", "inside"])
def test_rollouts_of_a_compiled_model_are_no_part_of_the_step(
    watching, model, optimizer, every, is_inside
):
    compiled = torch.compile(model, backend="aot_eager")
    watch, memory = watching(model, optimizer, every=every, log=["output", "param_grad"])
    for _ in range(4):
        with torch.no_grad():
            compiled(torch.ones(9, 4))
        loss = compiled(torch.ones(3, 4)).sum()
        if is_inside:
            whole(compiled, torch.ones(9, 4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    assert memory.steps == [(i, "train") for i in range(0, 4, every)]
    for i in range(0, 4, every):
        assert memory.at(i)["0/output/0"].count == 12


# -- branches of training ----------------------------------------------------------------------


def play_gan(discriminator, optimizer, watch, steps=3):
    """A discriminator's step: what is real and what is fake, one after the other, two backwards."""
    for i in range(steps):
        with watch.branch("real"):
            loss = discriminator(torch.ones(3, 4) * (i + 1)).sum()
        loss.backward()
        with watch.branch("fake"):
            fake = discriminator(-torch.ones(2, 4) * (i + 1)).sum()
        fake.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_branches_of_training_are_told_apart(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=2)
    play_gan(model, optimizer, watch)
    watch.close()
    assert sorted(memory.steps) == [
        (0, "train"),
        (0, "train/fake"),
        (0, "train/real"),
        (2, "train"),
        (2, "train/fake"),
        (2, "train/real"),
    ]
    for i in (0, 2):
        assert memory.at(i, "train/real")["./output/0"].count == 6
        assert memory.at(i, "train/real")["./output_grad/0"].count == 6
        assert memory.at(i, "train/fake")["./output/0"].count == 4
        assert memory.at(i, "train/fake")["0/output_grad/0"].count == 8
        assert memory.at(i, "train/fake")["0/input/0"].max == -(i + 1)
        kinds = {name.split("/")[1] for name in memory.at(i)}
        assert kinds == {"param", "param_grad", "update"}


def test_branches_leave_the_gradients_of_parameters_whole(watching, model, optimizer):
    import contextlib
    import copy

    class Plain:
        def branch(self, _name):
            return contextlib.nullcontext()

    twin = copy.deepcopy(model)
    watch, memory = watching(model, optimizer)
    play_gan(model, optimizer, watch)
    watch.close()
    other = torch.optim.SGD(twin.parameters(), lr=0.1)
    watch, plain = watching(twin, other, name="plain")
    play_gan(twin, other, Plain())
    watch.close()
    for i in range(3):
        merged = memory.at(i, "train/real")["0/output/0"].merge(
            memory.at(i, "train/fake")["0/output/0"]
        )
        assert merged == plain.at(i)["0/output/0"]
        for name in ("0/param_grad/weight", "2/param/bias", "0/update/weight"):
            assert memory.at(i)[name] == plain.at(i)[name]


def test_a_backward_over_both_branches_reaches_both(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    with watch.branch("real"):
        real = model(torch.ones(3, 4)).sum()
    with watch.branch("fake"):
        fake = model(torch.ones(2, 4)).sum()
    (real - fake).backward()
    optimizer.step()
    watch.close()
    assert memory.at(0, "train/real")["2/output_grad/0"].max == 1
    assert memory.at(0, "train/fake")["2/output_grad/0"].max == -1


def test_a_branch_is_in_the_run_as_a_phase(watching, model, optimizer):
    watch, _ = watching(model, optimizer)
    play_gan(model, optimizer, watch)
    model.eval()
    with watch.branch("fake"):  # of training only
        model(torch.ones(1, 4))
    watch.close()
    with sonde.open(watch.path) as run:
        found = run.stats("0", kind="output", phase="train/fake", stat="count")
        assert found["step"].tolist() == [0, 1, 2]
        assert found["count"].tolist() == [8, 8, 8]
