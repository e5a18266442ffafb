"""Graphs for tests: a model is watched for real, and its graph read back from the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import sonde
from sonde.graph.model import Graph


@pytest.fixture
def graph_of(tmp_path) -> Callable[..., Graph]:
    """Watch a model for some steps and read its graph."""

    def take(
        model: nn.Module,
        *args: Any,
        steps: int = 1,
        call: Callable[[nn.Module, int], Any] | None = None,
        **options: Any,
    ) -> Graph:
        act = call or (lambda m, _step: m(*args))
        options = {"every": 1, "dir": tmp_path, "name": f"run-{id(model)}", **options}
        with sonde.watch(model, strict=True, **options) as watch:
            for step in range(steps):
                act(model, step)
                watch.step()
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        with sonde.open(watch.path) as run:
            return run.graph

    return take
