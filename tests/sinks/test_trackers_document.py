"""docs/trackers.md: its code runs as it stands."""

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "trackers.md"


def test_the_code_of_the_document_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert blocks
    exec("\n".join(blocks), {"__name__": "document"})
    assert list((tmp_path / "tensorboard" / "first").glob("*tfevents*"))
