"""The document about what a run records tells the truth: its code runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "recording.md"


def test_code_in_the_document_runs_in_order(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    script = tmp_path / "document.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", script],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "first").is_dir()
