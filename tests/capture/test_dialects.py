"""Where there is no kernel of ours, plain torch serves: the same numbers, and one word about it."""

import subprocess
import sys
import textwrap

PROGRAM = """
import sys

sys.modules["sonde.kernels._c"] = None  # as if there had been no compiler
sys.modules["sonde.capture._native"] = None

import torch
from torch import nn
import sonde
from sonde.capture import native
from sonde.kernels import c

assert not c.available() and not native.AVAILABLE
torch.manual_seed(0)
for name in ("one", "two"):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with sonde.watch(model, optimizer, every=1, dir=sys.argv[1], name=name):
        for _ in range(3):
            loss = model(torch.randn(16, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    run = sonde.open(sys.argv[1] + "/" + name)
    assert run.merge("1", kind="output").count == 3 * 16 * 8
    told = run.sql("select message from events")["message"]
    assert any("plain torch operations" in text for text in told)
"""


def test_an_install_without_a_compiler_records_and_says_so_once(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("sketched by plain torch operations: the C kernel was not built") == 1
