"""Benchmarks that reach into the package still find there what they switch off."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import ablation

HERE = [part for part in ablation.PARTS if not part.needs_gpu or torch.cuda.is_available()]


@pytest.mark.parametrize("part", HERE, ids=lambda part: part.name)
def test_each_part_of_the_ablation_can_be_switched_off(part):
    with part.door():
        pass
