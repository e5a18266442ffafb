"""The document about comparing is true: its code runs as it stands."""

import re
from pathlib import Path

import matplotlib as mpl
from test_compare import train

DOCUMENT = Path(__file__).parents[2] / "docs" / "compare.md"


def test_code_in_the_document_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "runs", "before", steps=3)
    train(tmp_path / "runs", "after", steps=3)
    mpl.use("Agg")
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})
    assert "no difference" in capsys.readouterr().out
