"""Writes the golden run of the present format version: `python tests/store/make_golden.py`.

Golden runs prove that every later Sonde reads what earlier ones have written. One is made when the
format version changes and then never touched again.
"""

import json
import os
import sys
from pathlib import Path

import made
import numpy as np

from sonde.record import Event, NumberBatch, Site, SiteInfo, SketchBatch
from sonde.store import Writer, documents, open_run
from sonde.store.schemas import FORMAT_VERSION
from sonde.store.writing.compaction import compact

GOLDEN = Path(__file__).parent / "golden"


def write(path: Path) -> None:
    """Two ranks, of which one was resumed; compacted in part; everything that tensors can hold."""
    rng = np.random.default_rng(20)
    infos = made.sites(3)
    infos.append(SiteInfo(3, Site("", "attach", 1, "ключ/键 'x'"), "float8_e4m3fn", (), "Root"))
    ids = np.arange(4, dtype=np.int32)
    for rank, resume, steps in ((0, None, range(4)), (1, None, range(3)), (0, 2, range(2, 5))):
        with Writer(path, rank=rank, world_size=2, resume_from_step=resume) as writer:
            writer.sites(infos)
            for step in steps:
                sketches = made.columns(made.real_sketches(rng, 4))
                writer.sketches(SketchBatch(step, "train", ids, sketches))
                writer.numbers(made.loss(step, rank=rank))
                names, values = ["rcc", "rcc"], np.array([step, np.nan])
                writer.numbers(NumberBatch(step, "eval", names, ["h.0", ""], values))
                writer.flush()
            writer.event(Event("skipped", "a meta tensor", where="h.0", step=1, count=3))
        if rank == 1:
            compact(str(path))


def forget_the_machine(path: Path) -> None:
    """What a run says of the place where it was made does not belong into a repository."""
    neutral = {"host": {"hostname": "golden"}, "command": ["train.py"], "git": None}
    about = documents.load(str(path / "run.json"))
    (path / "run.json").write_bytes(documents.dump({**about, **neutral}))
    for file in (path / "ranks").glob("*.json"):
        document = documents.load(str(file))
        if "host" in document:
            document |= {"host": "golden", "pid": 1, "process_space": "golden"}
        file.write_bytes(documents.dump(document))


def answers(path: Path) -> dict[str, object]:
    """Everything that a reader must find, as JSON."""
    with open_run(path, frame="arrow") as run:
        tables = {
            "stats": run.stats(phase=None, stat=["count", "nans", "infs", "rms", "max", "p50"]),
            "rank 1": run.stats(phase=None, stat=["count", "sum"], rank=1),
            "all attempts": run.stats(phase=None, stat="count", all_attempts=True),
            "scalars": run.scalars(),
            "metrics": run.metrics(),
            "sites": run.sites,
            "events": run.sql("select rank, code, place, step, count from events order by all"),
            "bins": run.sql("select step, name, bin, count from bins order by all"),
        }
        found = {name: table.to_pylist() for name, table in tables.items()}
        found["damaged"] = [str(d) for d in run.damaged]
        found["status"] = run.status
        return json.loads(json.dumps(found), parse_constant=str)


def main() -> None:
    path = GOLDEN / f"v{FORMAT_VERSION}"
    if path.exists():
        sys.exit(f"{path} exists. Golden runs are never changed; a new version gets a new one.")
    write(path / "run")
    forget_the_machine(path / "run")
    for folder, _, names in os.walk(path):
        for name in names:
            if name.startswith("."):
                os.unlink(os.path.join(folder, name))
    (path / "answers.json").write_text(
        json.dumps(answers(path / "run"), indent=0, ensure_ascii=False)
    )


if __name__ == "__main__":
    main()
