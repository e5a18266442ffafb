"""What several modules of these tests need."""

import pytest
import torch
from torch._dynamo.utils import counters


@pytest.fixture
def fresh_compiler():
    """A compiler that has compiled and counted nothing, now and afterwards."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
