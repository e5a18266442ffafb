"""The writer takes everything, waits for nothing, raises nothing and counts what is lost."""

import gc
import json
import os
import subprocess
import sys
import threading
import time

import made
import numpy as np
import pytest
from faulty import CountingFiles, HeldFiles

import sonde
from sonde.record import Event, NumberBatch, SiteInfo, SketchBatch
from sonde.store import Writer, open_run


def settled(counts):
    """Every record is accounted for."""
    assert counts.handed == counts.written + counts.pending + sum(counts.dropped.values())
    return counts


def test_everything_handed_over_is_durable_within_flush_s(tmp_path):
    with Writer(tmp_path / "run", flush_s=1.0) as writer:
        writer.sites(made.sites(4))
        assert writer.flush()  # the first flush also loads libraries
        began = time.monotonic()
        writer.sketches(made.batch(0))
        with open_run(tmp_path / "run", frame="arrow") as run:
            while run.stats(stat="count").num_rows == 0:
                assert time.monotonic() - began < 120  # a busy machine's; nobody flushes or closes
                time.sleep(0.02)
        assert time.monotonic() - began > 0.5


def test_a_flush_waits_for_company(tmp_path):
    files = CountingFiles()
    with Writer(tmp_path / "run", flush_s=60, files=files) as writer:
        writer.sites(made.sites(4))
        writer.flush()
        for step in range(30):
            writer.sketches(made.batch(step))
        writer.flush()
    assert len(os.listdir(tmp_path / "run" / "live" / "r00000")) <= 4


def test_a_full_queue_drops_the_newest_and_counts_them(tmp_path):
    said = []
    files = HeldFiles()
    writer = Writer(
        tmp_path / "run", flush_s=0.1, max_pending_bytes=50_000, files=files, on_problem=said.append
    )
    writer.sites(made.sites(4))
    files.hold()
    writer.sketches(made.batch(0))
    assert files.is_held.wait(30)
    for step in range(1, 2000):
        writer.sketches(made.batch(step))
    files.let_go.set()
    counts = settled(writer.counts)
    assert counts.dropped["queue_full"] > 0
    writer.close()
    counts = settled(writer.counts)
    assert counts.pending == 0
    assert [s for s in said if "does not keep up" in s]
    assert len(said) == len(set(said))
    with open_run(tmp_path / "run", frame="arrow") as run:
        steps = run.stats(stat="count")["step"].to_pylist()
        kept = 8000 - counts.dropped["queue_full"]
        assert len(steps) == kept
        assert steps == sorted(s for s in range(kept // 4) for _ in range(4))
        assert run.info["dropped"] == dict(counts.dropped)
        assert [e["code"] for e in run.info["warnings"]] == ["queue_full"]


def test_a_disk_that_hangs_holds_nobody_up_and_memory_is_bounded(tmp_path):
    limit = 1 << 20
    files = HeldFiles()
    writer = Writer(
        tmp_path / "run", flush_s=0.2, max_pending_bytes=limit, files=files, compact=False
    )
    writer.sites(made.sites(100))
    batch = made.batch(0, 100)
    files.hold()
    for step in range(200):
        writer.sketches(SketchBatch(step, "train", batch.ids, batch.sketches))
        assert writer._inbox.size_bytes <= limit
        time.sleep(0.001)
    counts = settled(writer.counts)
    assert counts.written == 0, "all were handed over while nothing could be written"
    files.let_go.set()
    writer.close()
    assert settled(writer.counts).pending == 0


def test_bad_batches_are_refused_one_by_one_and_nothing_else_is_lost(tmp_path):
    said = []
    with Writer(tmp_path / "run", on_problem=said.append) as writer:
        writer.sites(made.sites(4))
        good = made.plain_sketches(1, 4)
        writer.sketches(made.batch(0))
        writer.sketches(SketchBatch(1, "train", np.array([0, 1, 2, 99], np.int32), good))
        writer.sketches(SketchBatch(1, "train", np.arange(3, dtype=np.int32), good))
        writer.sketches(None)
        writer.sketches("what")
        writer.numbers(NumberBatch(1, "train", ["a", "b"], [None], np.zeros(2)))
        writer.numbers(NumberBatch(1, "train", ["a"], [None], np.zeros(3)))
        writer.numbers(made.loss(1))
        writer.sites([None, "x"])
        writer.sites(7)
        writer.event(None)
        writer.event(Event("fine", "this one is"))
        writer.sketches(made.batch(2))
        assert writer.flush()
        counts = settled(writer.counts)
    assert counts.dropped["invalid"] >= 4 + 3 + 1 + 1 + 2 + 1
    assert len(said) == 1
    assert "refused" in said[0]
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.stats(stat="count")["step"].to_pylist() == [0] * 4 + [2] * 4
        assert run.scalars().num_rows == 1
        assert {"fine", "invalid"} <= set(run.sql("select code from events")["code"].to_pylist())


def test_the_thread_is_started_again_once_and_then_the_writer_is_off(tmp_path):
    class Deadly(CountingFiles):
        deaths = 0

        def perform(self, name, n, method, args):
            if name == "create" and self.deaths > 0 and "/live/" in args[0]:
                self.deaths -= 1
                raise SystemError("injected")
            return method(*args)

    files = Deadly()
    said = []
    writer = Writer(tmp_path / "run", flush_s=60, files=files, on_problem=said.append)
    writer.sites(made.sites(4))
    writer.sketches(made.batch(0))
    assert writer.flush()
    files.deaths = 1
    writer.sketches(made.batch(1))
    writer.flush()
    assert not writer.is_off
    assert "SystemError" in said[0]
    writer.sketches(made.batch(2))
    assert writer.flush(), "the second life writes on"
    files.deaths = 5
    writer.sketches(made.batch(3))
    began = time.monotonic()
    writer.flush(timeout_s=300)
    writer.sketches(made.batch(4))
    writer.flush(timeout_s=300)
    assert writer.is_off
    writer.sketches(made.batch(5))
    writer.close(timeout_s=300)
    assert time.monotonic() - began < 290, "no one waits for a dead thread"
    counts = settled(writer.counts)
    assert counts.dropped["failed"] > 0
    assert counts.pending == 0
    with open_run(tmp_path / "run", frame="arrow") as run:
        steps = run.stats(stat="count")["step"].to_pylist()
        assert {0, 2} <= set(steps)
        assert 5 not in steps
        assert len(steps) == 4 * len(set(steps))
        assert run.status == "finished"
        assert "switched itself off" in str(run.info["attempts"])


def test_eight_threads_hand_over_at_once_and_nothing_is_lost_or_mixed(tmp_path):
    with Writer(tmp_path / "run", flush_s=0.1) as writer:
        writer.sites(made.sites(4))

        def work(thread):
            for step in range(thread * 1000, thread * 1000 + 50):
                writer.sketches(made.batch(step))
                writer.numbers(made.loss(step))

        threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert settled(writer.counts).dropped == {}
    expected = [t * 1000 + s for t in range(8) for s in range(50)]
    with open_run(tmp_path / "run", frame="arrow") as run:
        rows = run.stats(stat="count")
        assert rows["step"].to_pylist() == [s for s in expected for _ in range(4)]
        assert rows["count"].to_pylist() == [
            1000 * s + 10 * i + 1 for s in expected for i in range(4)
        ]
        assert run.scalars("loss")["step"].to_pylist() == expected


def test_two_writers_in_one_process_do_not_meet(tmp_path):
    with Writer(tmp_path / "a") as a, Writer(tmp_path / "b") as b:
        for i, writer in enumerate((a, b)):
            writer.sites(made.sites(2 + i))
            writer.sketches(made.batch(i, 2 + i))
    for i, name in enumerate("ab"):
        with open_run(tmp_path / name, frame="arrow") as run:
            assert run.stats(stat="count")["step"].to_pylist() == [i] * (2 + i)


def test_the_same_rank_twice_makes_two_attempts(tmp_path):
    for number in (0, 1):
        writer = Writer(tmp_path / "run", resume_from_step=0)
        assert writer.attempt.number == number
        writer.sites(made.sites(1))
        writer.sketches(made.batch(writer.attempt.number, 1))
        writer.close()
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.stats(stat="count", all_attempts=True).num_rows == 2


def test_closing_twice_and_handing_over_afterwards_is_harmless_and_counted(tmp_path):
    writer = Writer(tmp_path / "run")
    writer.sites(made.sites(4))
    writer.close("finished")
    writer.close("failed: too late")
    writer.sketches(made.batch(0))
    assert writer.flush(timeout_s=1) is False
    assert settled(writer.counts).dropped == {"closed": 4}
    assert open_run(tmp_path / "run").info["reason"] == "finished"


def test_how_it_ended_is_kept(tmp_path):
    with pytest.raises(KeyError), Writer(tmp_path / "a"):
        raise KeyError("lost")
    with open_run(tmp_path / "a") as run:
        assert run.status == "failed"
        assert run.info["reason"] == "failed: KeyError: 'lost'"
    Writer(tmp_path / "b").close("interrupted")
    assert open_run(tmp_path / "b").status == "finished"


@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [
        ("", "finished", "exited"),
        ("sys.exit(3)", "finished", "exited"),
        ("raise ValueError('boom')", "failed", "failed: ValueError: boom"),
        ("os._exit(0)", "crashed", None),
        ("os.kill(os.getpid(), 9)", "crashed", None),
        ("os.kill(os.getpid(), 15)", "crashed", None),
    ],
)
def test_a_program_that_ends_without_closing_keeps_what_it_could(tmp_path, ending, status, reason):
    script = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import made
from sonde.store import Writer
writer = Writer({str(tmp_path / "run")!r})
writer.sites(made.sites(4))
writer.sketches(made.batch(0))
writer.flush()
writer.sketches(made.batch(1))
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.status == status
        assert run.info["reason"] == reason
        steps = set(run.stats(stat="count")["step"].to_pylist())
        assert steps == ({0} if status == "crashed" else {0, 1})
    if "boom" in ending:
        assert done.stderr.strip().endswith("ValueError: boom")


def test_exit_with_a_full_queue_and_a_slow_disk_takes_five_seconds_at_most(tmp_path):
    script = f"""
import sys, time
sys.path.insert(0, {os.path.dirname(__file__)!r})
import made
from faulty import SlowFiles
from sonde.store import Writer
files = SlowFiles(0)
writer = Writer({str(tmp_path / "run")!r}, flush_s=0.1, files=files)
writer.sites(made.sites(4))
writer.flush()
files.delay_s = 60
for step in range(100):
    writer.sketches(made.batch(step))
print(time.time(), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert time.time() - float(done.stdout) < 15  # five, and a process that ends on a busy machine
    assert done.returncode == 0


def test_the_writer_is_light_on_threads_and_file_descriptors(tmp_path):
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for i in range(5):
        with Writer(tmp_path / f"run{i}") as writer:
            writer.sites(made.sites(4))
            for step in range(5):
                writer.sketches(made.batch(step))
                writer.flush()
    gc.collect()
    deadline = time.monotonic() + 120
    while threading.active_count() > before[1] and time.monotonic() < deadline:
        time.sleep(0.01)
    # Fewer are fine: what tests before this one left behind may go while it runs.
    assert len(os.listdir("/proc/self/fd")) <= before[0]
    assert threading.active_count() <= before[1]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/", "cannot be a run directory"),
        ("~", "cannot be a run directory"),
        ("file", "is a file"),
        ("file/below", "is a file"),
        ("foreign", "not empty and not a run"),
        ("/proc/nothing", "Cannot make the directory"),
        ("x" * 300, "Cannot make the directory"),
        ("loop/run", "Cannot make the directory|is a file"),
    ],
)
def test_a_path_that_cannot_be_a_run_is_refused_at_once(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("x")
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(sonde.RunError, match=message):
        Writer(path)


def test_an_empty_folder_becomes_a_run_and_a_newer_one_is_refused(tmp_path):
    from sonde.store import documents

    (tmp_path / "empty").mkdir()
    Writer(tmp_path / "empty").close()
    (tmp_path / "newer").mkdir()
    newer = {"format_version": "2.0", "run_id": "x"}
    (tmp_path / "newer" / "run.json").write_bytes(documents.dump(newer))
    with pytest.raises(sonde.RunError, match=r"format version 2.0.*newer Sonde"):
        Writer(tmp_path / "newer", resume_from_step=0)
    with pytest.raises(sonde.RunError, match="newer Sonde"):
        open_run(tmp_path / "newer")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1}, "rank"),
        ({"flush_s": 0}, "flush_s"),
        ({"resume_from_step": -1}, "resume_from_step"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(sonde.RunError, match=message):
        Writer(tmp_path / "run", **arguments)


def test_run_json_says_where_the_run_comes_from_and_keeps_no_secrets(tmp_path):
    script = f"""
from sonde.store import Writer
Writer({str(tmp_path / "run")!r}, config={{"lr": 0.1, "f": print, "n": float("nan")}}).close()
"""
    arguments = ["--lr", "3", "--api-key", "hunter2", "--token=hunter2"]
    env = {**os.environ, "WANDB_API_KEY": "hunter2"}
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, env=env)
    text = (tmp_path / "run" / "run.json").read_text()
    about = json.loads(text)
    assert "hunter2" not in text
    assert about["command"][1:] == ["--lr", "3", "--api-key", "***", "--token=***"]
    assert about["config"]["lr"] == 0.1
    assert "print" in about["config"]["f"]
    assert about["versions"]["python"]
    assert about["host"]["hostname"]
    assert about["git"] is None or len(about["git"]["commit"]) == 40


def test_heartbeats_come_and_tell_the_owners_facts(tmp_path):
    with Writer(tmp_path / "run", heartbeat_s=0.1) as writer:
        writer.set_info(overhead=1.2, odd={"x": object()})
        deadline = time.monotonic() + 120
        with open_run(tmp_path / "run") as run:
            while run.info["overhead"] != 1.2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert run.status == "live"


def test_an_owner_whose_callback_raises_harms_nobody(tmp_path):
    def shout(message):
        raise RuntimeError("no")

    with Writer(tmp_path / "run", on_problem=shout) as writer:
        writer.sketches(made.batch(0))  # of sites that were never declared
        writer.flush()
        writer.sites(made.sites(4))
        writer.sketches(made.batch(1))
        assert writer.flush()
    assert any("on_problem" in p for p in writer.problems)
    assert open_run(tmp_path / "run", frame="arrow").stats(stat="count").num_rows == 4


def test_sites_are_published_before_the_first_sketch_that_names_them(tmp_path):
    order = []

    class Watching(CountingFiles):
        def perform(self, name, n, method, args):
            if name == "link":
                order.append(args[1].split("/")[-3])
            return method(*args)

    with Writer(tmp_path / "run", files=Watching(), flush_s=60) as writer:
        writer.sites(made.sites(2))
        writer.sketches(made.batch(0, 2))
        writer.flush()
        writer.sites([SiteInfo(9, made.sites(3)[2].site, "f", (), "L")])
        writer.sketches(SketchBatch(1, "train", np.array([9], np.int32), made.plain_sketches(1, 1)))
        writer.flush()
    published = [o for o in order if o in {"sites", "live"}]
    assert published == ["sites", "live", "sites", "live"]
