"""The path of a tensor: the files that ARCHITECTURE.md lists are those that a real step runs."""

import contextlib
import functools
import re
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch import nn

import sonde
from sonde._torch_internals.frames import TRACES_HOOKS
from sonde.capture.drain import Drain, WindowRows
from sonde.capture.plan import Plan, kinds_of, schedule_of
from sonde.capture.torch.capture import Capture
from sonde.capture.torch.hooks import Enter, Leave
from sonde.capture.torch.rows.recorder import Recorder
from sonde.capture.torch.session import TorchSession

PACKAGE = Path(sonde.__file__).parent
DOCUMENT = PACKAGE.parent.parent / "ARCHITECTURE.md"
CASES = ("eager", "compiled", "GPU")
TARGET = "1.0"
"""The module whose tensor is followed: not the outermost, whose call begins a pass as well."""


def listed(case):
    """The files that the document lists for a case, in its order."""
    section = DOCUMENT.read_text().split("## The path of a tensor", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([\w/.]+)` \|(.*)\|.*\|$", section, flags=re.MULTILINE)
    assert rows, "there is no table of files"
    at = CASES.index(case)
    return [path for path, marks in rows if "✓" in marks.split("|")[at]]


class Follower:
    """Notes the files of the package that run on behalf of a tensor.

    Those are the files that run in its hooks, in the hand-over of its row, in the drain, and while
    the model is compiled. The profile function is set only there: code that is compiled must not
    meet one.
    """

    def __init__(self, patch):
        self.files = set()
        self._patch = patch

    def __call__(self, frame, event, _argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            self.files.add(Path(path).relative_to(PACKAGE).as_posix())

    def follow(self, owner, name, is_about=lambda *_: True):
        """Note all that runs in this function, if its first argument is about the tensor."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def followed(*args, **kwargs):
            before = sys.getprofile()
            if before is not None or not is_about(*args):
                return inner(*args, **kwargs)
            sys.setprofile(self)
            try:
                return inner(*args, **kwargs)
            finally:
                sys.setprofile(None)

        self._patch.setattr(owner, name, followed)


def paths_of(key):
    return [tap.path for tap, _ in key.places()]


def files_of(memory, patch, *, compiles, device="cpu"):
    """Files on the path of a tensor in the first steps that are recorded."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    follower = Follower(patch)
    follower.follow(Capture, "gradient")
    follower.follow(Recorder, "hand_over")
    follower.follow(Drain, "_do", lambda _, job: isinstance(job, WindowRows))
    if compiles:
        follower.follow(torch._dynamo.convert_frame, "_compile")
        follower.follow(Capture, "compiled", lambda _, key, *__: TARGET in paths_of(key))
    else:
        follower.follow(Enter, "__call__", lambda hook, *_: hook.tap.path == TARGET)
        follower.follow(Leave, "__call__", lambda hook, *_: hook.tap.path == TARGET)
    plan = Plan(kinds_of(["output", "output_grad"]), strict=True, hyperparameters=False)
    drain = Drain([memory])
    session = TorchSession(model, [optimizer], plan, schedule_of(1), drain, step=0)
    called = torch.compile(model) if compiles else model
    uncached = torch._inductor.config.patch(force_disable_caches=True)
    with uncached if compiles else contextlib.nullcontext():
        for _ in range(3):
            called(torch.ones(4, 8, device=device)).sum().backward()
            optimizer.step()
    session.close()
    drain.close("finished", 60.0)
    assert memory.at(2)[f"{TARGET}/output/0"].count == 32
    assert memory.at(2)[f"{TARGET}/output_grad/0"].count == 32
    return follower.files


def test_the_document_lists_the_files_of_an_eager_step(memory, monkeypatch):
    assert files_of(memory, monkeypatch, compiles=False) == set(listed("eager"))


@pytest.mark.skipif(
    not TRACES_HOOKS, reason="the compiler of this torch leaves gradients in its code out"
)
def test_the_document_lists_the_files_of_a_compiled_step(memory, monkeypatch, fresh_compiler):
    assert files_of(memory, monkeypatch, compiles=True) == set(listed("compiled"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_document_lists_the_files_of_a_step_on_a_gpu(memory, monkeypatch):
    found = files_of(memory, monkeypatch, compiles=False, device="cuda")
    assert found == set(listed("GPU"))


@pytest.mark.parametrize("case", CASES)
def test_every_listed_file_is_there_once(case):
    files = listed(case)
    assert len(files) == len(set(files))
    for path in files:
        assert (PACKAGE / path).is_file(), path
