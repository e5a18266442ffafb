"""Runs the tutorials and puts their pictures into docs/images/tutorials.

    python docs/tutorial_pictures.py

`tests/docs/test_pictures.py` compares the digests written here with the scripts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SCRIPTS: Final = ROOT / "examples" / "tutorials"
IMAGES: Final = ROOT / "docs" / "images" / "tutorials"


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for old in IMAGES.glob("*.png"):
        old.unlink()
    made = {}
    for script in sorted(SCRIPTS.glob("*.py")):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "MPLBACKEND": "Agg"}
            subprocess.run([sys.executable, script], cwd=folder, env=environment, check=True)
            pictures = sorted(Path(folder).glob("*.png"))
            for picture in pictures:
                shutil.copy(picture, IMAGES / picture.name)
        made[script.name] = {"sha256": digest(script), "pictures": [p.name for p in pictures]}
    (IMAGES / "made_by.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def digest(script: Path) -> str:
    """The digest of the code of a script: its text cells may change without new pictures."""
    lines = script.read_text(encoding="utf-8").splitlines()
    code = "\n".join(line for line in lines if not line.startswith("#"))
    return hashlib.sha256(code.encode()).hexdigest()


if __name__ == "__main__":
    main()
