"""At most one process at a time writes a rank of a run, and the others are told why."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import made
import pytest

import sonde
from sonde.store import Writer, attempts, documents, open_run, provenance
from sonde.store.files import LocalFiles
from sonde.store.segments import Attempt
from sonde.store.writing import claims

SCRIPT = Path(__file__).parent / "claiming_writer.py"


class Claimant:
    """A process that claims rank 0 when told to."""

    def __init__(self, path, resume="new"):
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, path, resume],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self):
        found = self.process.stdout.readline()
        assert found, f"the process ended with {self.process.wait()}"
        return found.strip()

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def claimants(n, path, resume="new"):
    started = [Claimant(str(path), resume) for _ in range(n)]
    try:
        for one in started:
            assert one.line() == "ready"
        yield started
    finally:
        for one in started:
            one.process.kill()
            one.process.communicate()


def claim_all(several):
    for one in several:
        one.go()
    said = [one.line() for one in several]
    winners = [one for one, text in zip(several, said, strict=True) if text.startswith("took")]
    return winners, [text for text in said if not text.startswith("took")]


def finish(one):
    one.go()
    assert one.process.wait(60) == 0


def test_of_several_processes_that_claim_a_rank_at_once_one_writes(tmp_path):
    path = tmp_path / "run"
    with claimants(6, path) as several:
        winners, refused = claim_all(several)
        assert len(winners) == 1
        assert len(refused) == 5
        for text in refused:
            assert "RANK" in text
            assert f"process {winners[0].process.pid}" in text
        finish(winners[0])
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count")["count"].to_pylist() == [1, 11, 21, 31]
        assert len(run.info["attempts"]) == 1
        assert run.damaged == []


def test_of_several_processes_that_resume_at_once_one_writes(tmp_path):
    path = tmp_path / "run"
    Writer(path).close()
    with claimants(4, path, "0") as several:
        winners, refused = claim_all(several)
        assert len(winners) == 1
        assert all("cannot be resumed" in text for text in refused)
        finish(winners[0])
    with open_run(path) as run:
        assert [a["attempt"] for a in run.info["attempts"]] == [0, 1]


def test_resuming_beside_a_live_writer_is_refused_until_it_is_gone(tmp_path):
    path = tmp_path / "run"
    with claimants(1, path) as (other,):
        assert claim_all([other]) == ([other], [])
        with pytest.raises(sonde.RunError, match=rf"process {other.process.pid}.*still writing"):
            Writer(path, resume_from_step=1)
        other.process.kill()
        other.process.wait()
        with Writer(path, resume_from_step=1) as writer:
            assert writer.attempt.number == 1
    with open_run(path) as run:
        assert run.damaged == []


def test_resuming_beside_a_writer_of_the_same_process_is_refused_until_it_is_closed(tmp_path):
    first = Writer(tmp_path / "run")
    for resume in (None, 0):
        with pytest.raises(sonde.RunError, match=r"This process is still writing.*Close"):
            Writer(tmp_path / "run", resume_from_step=resume)
    first.close()
    Writer(tmp_path / "run", resume_from_step=0).close()


def test_a_writer_that_could_not_say_that_it_ended_can_be_resumed_in_the_same_process(tmp_path):
    class NoEnd(LocalFiles):
        def create(self, path):
            if ".end" in path:
                raise OSError(28, "No space left on device")
            return super().create(path)

    Writer(tmp_path / "run", files=NoEnd()).close()
    Writer(tmp_path / "run", resume_from_step=0).close()


def test_the_second_process_of_a_rank_trains_on_and_is_told_what_to_set(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with claimants(1, tmp_path / "run") as (other,):
        assert claim_all([other])[0] == [other]
        with pytest.warns(sonde.SondeWarning, match="RANK and WORLD_SIZE"):
            watch = sonde.watch(model, optimizer, dir=tmp_path, name="run")
        assert watch.path is None
        with watch:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            watch.log(loss=1.0)
            assert len(sonde.trace(model, "forward.input", into="run").results) == 0
        with pytest.raises(sonde.SondeError, match="RANK"):
            sonde.watch(model, optimizer, dir=tmp_path, name="run", strict=True)
        with pytest.raises(sonde.SondeError, match="still writing"):
            sonde.watch(model, optimizer, dir=tmp_path, name="run", resume=True)
        finish(other)
    with open_run(tmp_path / "run") as run:
        assert len(run.info["attempts"]) == 1


def start_file(path, number=0, *, where="elsewhere", **facts):
    """An attempt of rank 0 as a process in another place would have begun it."""
    attempt = Attempt(0, number, "abcd")
    start = {
        **attempts.identity(attempt),
        "pid": 1,
        "process_space": where,
        "host": "node7",
        "wall_ns": time.time_ns(),
        "monotonic_ns": time.monotonic_ns(),
        "resume_from_step": None if number == 0 else 5,
        **facts,
    }
    folder = path / "ranks"
    (folder / f"{attempt.stem}.json").write_bytes(documents.dump(start))
    return attempt


def beat(path, attempt, **facts):
    heartbeat = {**attempts.identity(attempt), "wall_ns": time.time_ns(), **facts}
    (path / "ranks" / f"{attempt.stem}.hb.json").write_bytes(documents.dump(heartbeat))


@pytest.fixture
def run(tmp_path):
    """A run that some other rank has made."""
    Writer(tmp_path / "run", rank=1, world_size=2).close()
    return tmp_path / "run"


def test_a_writer_elsewhere_that_beats_is_live_and_one_that_does_not_can_be_resumed(
    run, monkeypatch
):
    attempt = start_file(run)
    beat(run, attempt)
    monkeypatch.setattr(claims, "STALE_S", 0.3)
    Writer(run, world_size=2, resume_from_step=5).close()

    attempt = start_file(run, 2)
    beat(run, attempt)
    monkeypatch.setattr(claims, "STALE_S", 60.0)
    pauses = []

    def another_beat(seconds):
        pauses.append(seconds)
        beat(run, attempt)

    monkeypatch.setattr(claims, "_sleep", another_beat)
    with pytest.raises(sonde.RunError, match=r"node7.*still writing"):
        Writer(run, world_size=2, resume_from_step=5)
    assert len(pauses) == 1


def test_a_claim_whose_process_died_before_it_began_is_passed_over(run):
    mark = run / "ranks" / ".claim-r00000.a0000"
    dead = {"pid": 2**22 + 5, "process_start": "1", "process_space": provenance.process_space()}
    mark.write_bytes(documents.dump({**attempts.identity(Attempt(0, 0, "abcd")), **dead}))
    with Writer(run, world_size=2) as writer:
        assert writer.attempt.number == 1


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 100])
def test_a_claim_that_says_nothing_counts_while_it_is_young(run, content):
    mark = run / "ranks" / ".claim-r00000.a0000"
    mark.write_bytes(content)
    with pytest.raises(sonde.RunError, match="RANK"):
        Writer(run, world_size=2)
    old = time.time() - 3600
    os.utime(mark, (old, old))
    Writer(run, world_size=2).close()


def test_a_claim_works_where_there_are_no_hard_links(tmp_path):
    class NoLinks(LocalFiles):
        def link(self, source, target):
            raise PermissionError(1, "Operation not permitted")

    with Writer(tmp_path / "run", files=NoLinks()) as writer:
        folder = str(tmp_path / "run" / "ranks")
        assert not claims._take(NoLinks(), folder, writer.attempt, b"another process")
        assert claims._take(NoLinks(), folder, Attempt(0, 1, "abcd"), b"another process")


def test_a_link_that_was_made_though_it_failed_is_our_claim(tmp_path):
    class Twice(LocalFiles):
        def link(self, source, target):
            with suppress(FileExistsError):
                super().link(source, target)
            if ".claim-" in target:
                raise FileExistsError(17, "File exists")

    with Writer(tmp_path / "run", files=Twice()) as writer:
        assert writer.attempt.number == 0


@pytest.mark.parametrize(("resume", "consequence"), [(None, "both count"), (5, "from step 5 on")])
def test_attempts_that_overlap_are_named(tmp_path, resume, consequence):
    path = tmp_path / "run"
    with Writer(path) as writer:
        writer.sites(made.sites(1))
        writer.sketches(made.batch(0, 1))
        later = start_file(
            path, 1, where=provenance.process_space(), resume_from_step=resume, host="here"
        )
    with pytest.warns(sonde.SondeWarning, match="at the same time"), open_run(path) as run:
        (damage,) = run.damaged
    assert damage.file == f"ranks/{later.stem}.json"
    assert "rank 0" in damage.problem
    assert consequence in damage.problem


def test_attempts_one_after_the_other_are_no_damage_and_clocks_of_machines_may_differ(tmp_path):
    path = tmp_path / "run"
    Writer(path).close()
    start_file(path, 1, wall_ns=time.time_ns() - 20 * 10**9)
    with open_run(path) as run:
        assert run.damaged == []
