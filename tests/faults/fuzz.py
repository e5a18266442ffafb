"""Fuzzing of runs: `make fuzz ARGS="--mutations 100 --seed 1 --kinds live stats"`.

Every kind of file of a run is mutated in turn, by bytes and by structure, once as damage would
(checksums then wrong) and once as a forger would (checksums right). A process of its own opens the
run and asks it for rows, and for some of what else can be asked, chosen by chance; of runs whose
mutated files are all refused at once, it asks one in ten. Up to four files of the kind are mutated
for one such reading; each counts as a mutation. What must hold:

* it neither crashes nor hangs, and takes less than 2 GB of memory;
* only errors of ours come out;
* without a forged checksum no answer holds a number that the whole run does not hold;
* with one, everything that the other files hold is still answered, or the damage is named.

The same seed makes the same mutations. The report at the end names each failure by what repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import forging
import pyarrow as pa
import whole

from sonde._errors import SondeError
from sonde.store import open_run
from sonde.store.schemas import TABLES

MEMORY_BYTES = 2 << 30
HANG_S = 120.0

SEGMENTS = tuple(folder for table in TABLES for folder in table.folders)
KINDS = ("run.json", "start", "heartbeat", "end", *SEGMENTS, "tensors")
TEXTS = ("x" * 70_000, "", "\x00", "\x1b[2J", "../../etc/passwd", "é" * 300, "a.b.c" * 200, "h.0")
NUMBERS = (0, -1, 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 10**400, -(10**400), 1e308, 0.5)
VALUES = (None, True, [], {}, [[]], {"x": 1}, *TEXTS, *NUMBERS)


# -- mutations -----------------------------------------------------------------------------------


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, lost, doubled, or all of the rest cut off."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(found) + 1)
        size = min(rng.choice((1, 2, 4, 8, 64, 500)), len(found) - at)
        match rng.randrange(7):
            case 0 if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                found[at : at + size] = rng.randbytes(size)
            case 2:
                del found[at : at + size]
            case 3:
                found[at:at] = found[at : at + size]
            case 4:
                found[at : at + size] = bytes([rng.choice((0, 0xFF, 0x7F, 0x80))]) * size
            case 5:
                found[at:at] = rng.randbytes(size)
            case 6:
                del found[at + size :]
    return bytes(found)


def mutated_document(document: dict, rng: random.Random) -> dict:
    """Fields, also inner ones, with other values, lost, or with other names."""
    found = json.loads(json.dumps(document))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = found
        while True:
            key = rng.choice(list(at)) if at else None
            inner = at.get(key) if isinstance(at, dict) else None
            if not isinstance(inner, dict) or not inner or rng.random() < 0.4:
                break
            at = inner
        match rng.randrange(3):
            case 0 if key is not None:
                del at[key]
            case 1:
                at[rng.choice(("x", "$", "crc32", "rank", "step"))] = rng.choice(VALUES)
            case _ if key is not None:
                at[key] = rng.choice(VALUES)
    return found


def mutated_rows(rows: pa.Table, rng: random.Random) -> pa.Table:
    """A column with nulls, extremes or texts, another type, or not there; or other rows."""
    name = rng.choice(rows.schema.names)
    at, kind = rows.schema.get_field_index(name), rows.schema.field(name).type
    values = rows[name].to_pylist()
    where = rng.randrange(len(values)) if values and rng.random() < 0.5 else None

    def put(value):
        return [value if where in (None, i) else v for i, v in enumerate(values)]

    match rng.randrange(6):
        case 0:
            return forging.set_column(rows, name, put(None))
        case 1:
            return rows.drop_columns([name])
        case 2:
            other = rng.choice((pa.string(), pa.int64(), pa.float64(), pa.list_(pa.int64())))
            return rows.set_column(at, name, pa.nulls(len(values), other))
        case 3:
            return pa.concat_tables([rows] * rng.choice((0, 2, 50)) or [rows.slice(0, 0)])
        case 4:
            return rows.rename_columns([n[:-1] if n == name else n for n in rows.schema.names])
    if pa.types.is_string(kind):
        return forging.set_column(rows, name, put(rng.choice(TEXTS)))
    if pa.types.is_list(kind):
        one = rng.choice(([], [0], [-1], [2047, 0], [32767] * 5000, [None]))
        return forging.set_column(rows, name, put(one))
    if pa.types.is_floating(kind):
        return forging.set_column(rows, name, put(rng.choice((float("nan"), float("inf"), -1e308))))
    bits = kind.bit_width - 1
    return forging.set_column(rows, name, put(rng.choice((0, -1, 2**bits - 1, -(2**bits)))))


def mutate_some(path: Path, kind: str, rng: random.Random, *, forged: bool) -> list[str]:
    """Change one to four files of the kind; their names as they are now, "" if one is the same."""
    files = files_of(path, kind)
    chosen = rng.sample(files, min(rng.randint(1, 4), len(files)))
    return [mutate(path, file, kind, rng, forged=forged) for file in chosen]


def mutate(path: Path, file: Path, kind: str, rng: random.Random, *, forged: bool) -> str:
    """Change a file of the run; its name, relative to the run."""
    data = file.read_bytes()
    file.unlink()  # it is a link to the original
    file.write_bytes(data)
    if not forged:
        changed = mutated_bytes(data, rng)
        file.write_bytes(changed)
        return str(file.relative_to(path)) if changed != data else ""
    if kind in SEGMENTS:
        if rng.random() < 0.5:
            return str(forging.renamed(file, mutated_bytes(data, rng)).relative_to(path))
        footer = {}
        if rng.random() < 0.2:
            key = rng.choice(("steps", "repeats", "resume_from_step", "format_version", "table"))
            footer = {key: rng.choice((*VALUES, [0, 0], [-5, 2**40], ["a", "b"]))}
        try:
            changed = forging.rewritten(file, lambda rows: mutated_rows(rows, rng), footer=footer)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            changed = forging.renamed(file, mutated_bytes(data, rng))
        return str(changed.relative_to(path))
    if kind == "tensors":
        return str(forging.renamed(file, mutated_bytes(data, rng)).relative_to(path))
    document = json.loads(data)
    document.pop("crc32", None)
    file.write_bytes(forging.signed(mutated_document(document, rng)))
    return str(file.relative_to(path))


def files_of(path: Path, kind: str) -> list[Path]:
    if kind == "run.json":
        return [path / kind]
    if kind in {"start", "heartbeat", "end"}:
        ending = {"start": "json", "heartbeat": "hb.json", "end": "end.json"}[kind]
        names = sorted((path / "ranks").glob("r*.json"))
        return [f for f in names if f.name.split(".", 2)[2] == ending]
    return sorted(f for f in (path / kind).rglob("*") if f.is_file() and f.name[0] != ".")


# -- what is asked -------------------------------------------------------------------------------


def questions(run):
    """Everything that can be asked, by name. Each gives rows that can be compared, or None."""
    from sonde.views import ids
    from sonde.views.answers import ANSWERS
    from sonde.views.questions import parse
    from sonde.views.routes import ROUTES
    from sonde.views.runs.opened_run import OpenedRun

    subject = OpenedRun(run, "run")
    site = ids.of_name("h.0/output/0")
    asked = {"run": "run", "module": "h.0", "q": "h", "site": site, "variable": "h.0.forward.q"}

    def view(name):
        question = ROUTES[name].question
        fields = [(f, v) for f, v in asked.items() if f in question.__dataclass_fields__]
        return ANSWERS[name](subject, parse(question, fields))

    def values():
        found = run.trace("**")
        read = zip(found.names, found.iterations, found.values, strict=True)
        return [repr((n, i, v)) for n, i, v in read if type(v).__name__ != "Lost"]

    hidden = "exclude (t_ns, replaced)"
    return {
        "records": lambda: run.sql(f"select * {hidden} from records").to_pylist(),
        "numbers": lambda: run.sql(f"select * {hidden} from numbers").to_pylist(),
        "values": values,
        **{
            name: lambda ask=ask: [ask(), None][1]
            for name, ask in {
                "stats": lambda: run.stats(stat=["count", "sum", "rms", "p50", "rm8"], phase=None),
                "rank": lambda: run.stats(stat=["count", "sum"], rank=1),
                "attempts": lambda: run.stats(stat="count", all_attempts=True),
                "scalars": run.scalars,
                "metrics": run.metrics,
                "bins": lambda: run.sql("select * from bins"),
                "steps": lambda: run.steps,
                "info": lambda: json.dumps(run.info),
                "sites": lambda: run.sites,
                "merged": lambda: run.merge(phase=None, by=("name", "step")),
                "graph": lambda: run.graph.level(""),
                "traces": lambda: run.traces,
                "events": lambda: run.sql("select * from events"),
                "status": lambda: run.status,
                **{f"view {name}": lambda name=name: view(name) for name in ANSWERS},
            }.items()
        },
    }


ROWS = ("records", "numbers", "values")
"""Questions whose rows are compared."""

BESIDES = 2
"""How many other questions one reading asks."""

REFUSED = 0.1
"""Of the readings in which every mutated file is refused when the run is opened, the share that
goes on to questions. What is not refused is always asked about."""


def chosen(run, kind: str, rng: random.Random) -> dict:
    """A few questions in any order: for the rows of the kind, for some others, and besides."""
    found = questions(run)
    others = rng.sample([name for name in found if name not in ROWS], BESIDES)
    names = {OWN.get(kind, "records"), rng.choice(ROWS), *others}
    return {name: found[name] for name in rng.sample(sorted(names), len(names))}


def answers(asked: dict) -> tuple[dict[str, set[str]], list[str], list[str]]:
    """Rows by question, errors that are none of ours, and questions that were refused."""
    found, foreign, refused = {}, [], []
    for name, ask in asked.items():
        try:
            rows = ask()
        except SondeError as error:
            refused.append(f"{name}: {error}")
        except BaseException:
            foreign.append(f"{name}: {traceback.format_exc(limit=-3)}")
        else:
            if rows is not None:
                found[name] = set(map(repr, rows))
    return found, foreign, refused


OWN = {
    "live": "records",
    "stats": "records",
    "live_numbers": "numbers",
    "numbers": "numbers",
    "live_traces": "values",
    "traces": "values",
    "tensors": "values",
}
"""Which rows a file of a kind holds."""


def judge(path, kind, changed: list[str], right: dict[str, set[str]], rng, *, forged: bool):
    """What is wrong with how the run is read, as texts."""
    wrong = []
    try:
        run = open_run(path, frame="arrow")
    except SondeError:
        return wrong
    with run:
        if {d.file for d in run.damaged}.issuperset(changed) and rng.random() > REFUSED:
            return wrong  # each is left out before anything is asked, for whatever is asked
        asked = chosen(run, kind, rng)
        found, wrong, _ = answers(asked)
        if forged and run.damaged:  # what was found at fault on the way is left out now
            found, more, _ = answers({name: asked[name] for name in ROWS if name in asked})
            wrong += more
        named = {d.file for d in run.damaged}
        if not forged:
            for name, rows in found.items():
                if not rows <= right[name]:
                    wrong.append(f"{name}: a wrong number, {sorted(rows - right[name])[:2]}")
            is_whole = found == {name: right[name] for name in found}
            if any(changed) and kind != "tensors" and not named and not is_whole:
                wrong.append("something is missing and nothing is named as damaged")
        elif kind in {*SEGMENTS, "tensors"}:
            for name, rows in found.items():
                if name != OWN.get(kind) and rows != right[name]:
                    wrong.append(f"{name}: changed by a file that holds none of it")
                elif named.issuperset(changed) and not rows <= right[name]:
                    wrong.append(f"{name}: a wrong number, {sorted(rows - right[name])[:2]}")
    return wrong


# -- processes -----------------------------------------------------------------------------------


def serve(base: Path) -> None:
    """Judge one mutation per line of standard input, for as long as there are any."""
    warnings.simplefilter("ignore")
    with open_run(base, frame="arrow") as run:
        right, foreign, refused = answers(questions(run))
    assert not foreign + refused, "a whole run answers everything"
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        for line in sys.stdin:
            case = json.loads(line)
            path = Path(scratch) / "run"
            shutil.copytree(base, path, copy_function=os.link)
            rng = random.Random(f"{case['seed']} {case['kind']} {case['n']} {case['forged']}")
            changed = mutate_some(path, case["kind"], rng, forged=case["forged"])
            wrong = judge(path, case["kind"], changed, right, rng, forged=case["forged"])
            peak = peak_bytes()
            if peak > MEMORY_BYTES:
                wrong.append(f"takes {peak >> 20} MB of memory")
            shutil.rmtree(path)
            print(json.dumps({"wrong": wrong, "peak": peak, "files": changed}), flush=True)
            if peak > MEMORY_BYTES:
                return


def peak_bytes() -> int:
    """The most memory of this process so far. `ru_maxrss` would count what its parent had when it
    was forked."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


class Judge:
    """A process that judges mutations; started again when it dies or hangs."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.process: subprocess.Popen[str] | None = None

    def ask(self, case: dict) -> dict:
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-X", "faulthandler", __file__, "--serve", str(self.base)]
            paths = os.pathsep.join(path for path in sys.path if path)
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                env={**os.environ, "PYTHONPATH": paths},
            )
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], HANG_S)[0]:
            self.close()
            return {"wrong": [f"hangs: still at it after {HANG_S:.0f} s"], "peak": 0, "files": [""]}
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            return {"wrong": [f"crashes: exit code {code}"], "peak": 0, "files": [""]}
        return json.loads(line)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process = None


def campaign(base: Path, *, mutations: int, seed: int = 0, kinds=KINDS, first=0, say=None) -> dict:
    """Mutate each kind of file so many times, half of them forged. What was found."""
    judge_ = Judge(base)
    failures, counts, peak, forged = [], Counter(), 0, 0
    try:
        for kind in kinds:
            began = time.monotonic()
            for n in itertools.count(first):
                case = {"seed": seed, "kind": kind, "n": n, "forged": bool(n % 2)}
                found = judge_.ask(case)
                counts[kind] += len(found["files"])
                forged += case["forged"] * len(found["files"])
                peak = max(peak, found["peak"])
                failures += [{**case, "files": found["files"], "wrong": w} for w in found["wrong"]]
                if say is not None and (n + 1 - first) % 100 == 0:
                    say(f"{kind:14} {counts[kind]:6} mutations, {len(failures)} failures so far")
                if counts[kind] >= mutations:
                    break
            if say is not None:
                bad = sum(f["kind"] == kind for f in failures)
                took = time.monotonic() - began
                say(f"{kind:14} {counts[kind]:6} mutations  {bad:4} failures  {took:6.0f} s")
    finally:
        judge_.close()
    return {
        "mutations": dict(counts),
        "forged": forged,
        "failures": failures,
        "peak_bytes": peak,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--mutations", type=int, default=2000, help="of each kind of file, at least"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first reading")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--serve", metavar="RUN", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Path(arguments.serve))
        return 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        base = Path(folder) / "base"
        whole.write(base, steps=9)
        found = campaign(
            base,
            mutations=arguments.mutations,
            seed=arguments.seed,
            kinds=arguments.kinds,
            first=arguments.first,
            say=lambda text: print(text, flush=True),
        )
    for failure in found["failures"][:50]:
        print(
            f"\n--kinds {failure['kind']} --seed {failure['seed']} --first {failure['n']} "
            f"--mutations 1  ({'forged, ' if failure['forged'] else ''}{failure['files']})\n"
            f"{failure['wrong']}"
        )
    print(
        f"\n{sum(found['mutations'].values())} mutations, {found['forged']} of them with the right "
        f"checksum, {len(found['failures'])} failures, "
        f"at most {found['peak_bytes'] >> 20} MB of memory"
    )
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
