"""A run in an object store is the run that was written, and a store that fails costs nothing."""

import os
import shutil
import time
import warnings
from itertools import count
from pathlib import Path

import made
import pytest
import torch
from s3_server import always, is_put, served

import sonde
from sonde._errors import RunError, SondeWarning
from sonde.cli import main
from sonde.store import open_run
from sonde.store.remote import mirror, upload
from sonde.store.remote.objects import StoredObjects, above, below, is_url, shown
from sonde.store.remote.upload import Uploader
from sonde.store.writing.compaction import compact
from sonde.store.writing.writer import Writer
from sonde.views.runs.run_list import RunList

_BUCKETS = count()


@pytest.fixture(scope="module")
def server():
    with served() as running:
        yield running


@pytest.fixture
def url(server, tmp_path, monkeypatch):
    """The URL of an empty folder of runs; its server behaves, and is asked again soon."""
    server.behave()
    bucket = f"bucket{next(_BUCKETS)}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(upload, "_PASS_S", 0.05)
    monkeypatch.setattr(upload, "_LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(mirror, "_FRESH_S", 0.0)
    server.new_bucket(bucket)
    yield f"s3://{bucket}/runs"
    server.behave()


def write(path, steps, *, rank=0, world=1, url=None, **options):
    with Writer(
        path, rank=rank, world_size=world, upload_to=url, compact=False, **options
    ) as writer:
        fill(writer, steps, rank=rank)


def fill(writer, steps, *, rank=0):
    writer.sites(made.sites(4))
    for step in steps:
        writer.sketches(made.batch(step, 4, rank=rank))
        writer.numbers(made.loss(step, rank=rank))


def stats(path, **options):
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        return run.stats(stat=["count", "rms", "p50"], **options).to_pylist()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def objects(url):
    return set(StoredObjects(url).find())


def test_a_run_in_a_bucket_reads_like_the_one_on_disk(url, tmp_path):
    write(tmp_path / "run", range(5), url=below(url, "run"))
    assert stats(f"{url}/run") == stats(tmp_path / "run")
    with sonde.open(f"{url}/latest", frame="arrow") as run:
        assert (run.name, run.status, run.steps) == ("run", "finished", list(range(5)))
        assert run.info["watch"]["upload"]["url"] == shown(f"{url}/run")
    names = {p.relative_to(tmp_path / "run").as_posix() for p in (tmp_path / "run").rglob("*.*")}
    assert objects(f"{url}/run") == {n for n in names if not n.rpartition("/")[2].startswith(".")}


def test_a_training_records_into_a_bucket_and_is_listed_and_shown(url, capsys):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, dir=url, name="first", every=1) as watch:
        for _ in range(3):
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
    assert "spool" in watch.path.parts
    with sonde.open(f"{url}/first", frame="arrow") as run:
        assert run.steps == [0, 1, 2]
    assert main(["ls", url]) == 0
    assert "first" in capsys.readouterr().out
    assert main(["show", f"{url}/first"]) == 0
    with pytest.raises(RunError, match="already a run"):
        sonde.watch(model, optimizer, dir=url, name="first")


def test_machines_write_one_run_without_asking_each_other(url, tmp_path):
    for rank in range(2):
        write(tmp_path / f"host{rank}" / "run", range(3), rank=rank, world=2, url=below(url, "run"))
    with open_run(f"{url}/run", frame="arrow") as run:
        assert run.damaged == []
        assert [s["rank"] for s in run.info["ranks"]["states"]] == [0, 1]
        for rank in range(2):
            own = stats(tmp_path / f"host{rank}" / "run", rank=rank)
            assert run.stats(stat=["count", "rms", "p50"], rank=rank).to_pylist() == own


def test_a_reader_follows_a_run_that_grows(url, tmp_path):
    with Writer(tmp_path / "run", upload_to=below(url, "run"), flush_s=0.1) as writer:
        fill(writer, [0])
        wait_for(lambda: any(n.startswith("live/") for n in objects(f"{url}/run")))
        with open_run(f"{url}/run", frame="arrow") as run:
            wait_for(lambda: run.steps == [0])
            assert run.status == "live"
            fill(writer, [1])
            wait_for(lambda: run.steps == [0, 1])


def test_a_store_that_is_down_delays_nothing_and_the_run_says_so(url, tmp_path, server):
    server.refuses = always
    told = []
    with Writer(
        tmp_path / "run", upload_to=below(url, "run"), on_problem=told.append, flush_s=0.1
    ) as writer:
        fill(writer, range(3))
        assert writer.flush()
        wait_for(lambda: told)
        server.behave()
        wait_for(lambda: any(n.startswith("live/") for n in objects(f"{url}/run")))
    assert "Training and recording continue" in told[0]
    with open_run(f"{url}/run", frame="arrow") as run:
        assert run.steps == [0, 1, 2]
        assert [e["code"] for e in run.info["warnings"]] == ["upload"]
        assert run.info["watch"]["upload"]["failures"] > 0


def test_what_a_dead_store_did_not_take_waits_and_is_uploaded_later(url, server, capsys):
    server.refuses = is_put
    model = torch.nn.Linear(3, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SondeWarning)
        watch = sonde.watch(model, dir=url, name="run", every=1, flush_s=0.1)
        model(torch.ones(1, 3))
        watch.step()
        watch.close()
    told = " ".join(str(w.message) for w in caught)
    assert f"sonde upload {watch.path}" in told
    assert open_run(watch.path).steps == [0]
    server.behave()
    assert main(["upload", str(watch.path)]) == 0
    assert open_run(f"{url}/run").steps == [0]
    assert "files uploaded" in capsys.readouterr().out


def test_a_slow_store_holds_back_nothing(url, tmp_path, server):
    stored = StoredObjects(f"{url}/run")
    assert stored.find() == {}  # connected: Arrow lets no connection begin while another waits
    server.holds = is_put
    with Writer(tmp_path / "run", upload_to=below(url, "run"), flush_s=0.1) as writer:
        for step in range(5):
            fill(writer, [step])
            assert writer.flush()
        wait_for(lambda: any(method == "PUT" for method, _ in server.requests))
        assert open_run(tmp_path / "run").steps == list(range(5))
        assert stored.find() == {}
        server.released.set()
    assert stats(f"{url}/run") == stats(tmp_path / "run")


def test_an_object_that_is_not_there_whole_is_put_again(url, tmp_path, server):
    write(tmp_path / "run", range(3))
    uploader = Uploader(str(tmp_path / "run"), below(url, "run"))
    server.forgets = is_put
    with pytest.raises(OSError, match="not whole"):
        uploader.upload()
    server.behave()
    uploader.upload()
    assert stats(f"{url}/run") == stats(tmp_path / "run")


def test_a_second_upload_of_the_same_files_changes_nothing(url, tmp_path):
    write(tmp_path / "run", range(3), url=below(url, "run"))
    before = objects(f"{url}/run")
    for rank in (None, 0):
        again = Uploader(str(tmp_path / "run"), below(url, "run"), rank=rank)
        again.upload()
        assert objects(f"{url}/run") == before
    assert stats(f"{url}/run") == stats(tmp_path / "run")


def test_segments_that_were_compacted_leave_the_bucket(url, tmp_path):
    with Writer(tmp_path / "run", compact=False) as writer:
        for step in range(64):
            writer.sites(made.sites(4))
            writer.sketches(made.batch(step, 4))
            assert writer.flush()
    uploader = Uploader(str(tmp_path / "run"), below(url, "run"))
    uploader.upload()
    before = stats(f"{url}/run")
    compact(str(tmp_path / "run"))
    uploader.upload()
    names = objects(f"{url}/run")
    assert any(n.startswith("stats/") for n in names)
    assert not any(n.startswith("live/") for n in names)
    assert stats(f"{url}/run") == before
    shutil.rmtree(tmp_path / "cache")
    assert stats(f"{url}/run") == before


def test_a_spool_that_was_deleted_takes_nothing_out_of_the_bucket(url, tmp_path):
    write(tmp_path / "run", range(3))
    uploader = Uploader(str(tmp_path / "run"), below(url, "run"))
    uploader.upload()
    before = objects(f"{url}/run")
    shutil.rmtree(tmp_path / "run" / "live")
    uploader.upload()
    assert objects(f"{url}/run") == before


class LateListing(StoredObjects):
    """A store whose listings know nothing of the newest objects."""

    late = 0

    def find(self, prefix=""):
        found = sorted(super().find(prefix).items(), key=lambda item: item[1].modified_ns)
        return dict(found[: len(found) - self.late])


def test_a_late_listing_gives_less_and_later_all(url, tmp_path):
    write(tmp_path / "run", range(3), url=below(url, "run"))
    listed = LateListing(below(url, "run"))
    listed.late = 3
    copy = mirror.RunMirror(str(tmp_path / "copy"), below(url, "run"), objects=listed)
    copy.pull()
    files = {p.name for p in (tmp_path / "copy").rglob("*.parquet")}
    assert files < {p.name for p in (tmp_path / "run").rglob("*.parquet")}
    listed.late = 0
    copy.pull()
    assert stats(tmp_path / "copy") == stats(tmp_path / "run")


def test_a_copy_that_went_bad_is_fetched_again_and_a_bad_object_is_named(url, tmp_path):
    write(tmp_path / "run", range(3), url=below(url, "run"))
    expected = stats(f"{url}/run")
    (segment,) = (tmp_path / "cache" / "mirror").glob("*/run/live/r00000/*.parquet")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    mirror._MIRRORS.clear()
    assert stats(f"{url}/run") == expected
    name = f"live/r00000/{segment.name}"
    StoredObjects(f"{url}/run").put(name, bytes(data))
    assert stats(f"{url}/run") == expected, "what was verified is kept"
    shutil.rmtree(tmp_path / "cache")
    mirror._MIRRORS.clear()
    with open_run(f"{url}/run", frame="arrow") as run:
        with pytest.warns(SondeWarning):
            assert run.stats(stat="count").num_rows == 0
        assert [(d.file, "checksum" in d.problem) for d in run.damaged] == [(name, True)]


def test_a_store_that_goes_down_leaves_the_copy_and_says_so(url, tmp_path, server):
    write(tmp_path / "run", range(3), url=below(url, "run"))
    with open_run(f"{url}/run", frame="arrow") as run:
        assert run.steps == [0, 1, 2]
        server.refuses = always
        with pytest.warns(SondeWarning):
            assert run.stats(stat="count").num_rows == 12
        assert "cannot be read" in run.damaged[0].problem
    shutil.rmtree(tmp_path / "cache")
    mirror._MIRRORS.clear()
    with pytest.raises(RunError, match="cannot be read"):
        open_run(f"{url}/run")


def test_a_run_goes_on_from_another_machine(url, monkeypatch, tmp_path):
    model = torch.nn.Linear(3, 2)

    def train(steps, **options):
        optimizer = torch.optim.Adam(model.parameters())
        with sonde.watch(model, optimizer, dir=url, name="run", every=1, **options):
            for _ in range(steps):
                model(torch.ones(4, 3)).sum().backward()
                optimizer.step()

    train(4)
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr("sonde.store.attempts.provenance.process_space", lambda: "another")
    train(3, resume=True, step=2)
    with open_run(f"{url}/run", frame="arrow") as run:
        assert [(a["attempt"], a["resume_from_step"]) for a in run.info["attempts"]] == [
            (0, None),
            (1, 2),
        ]
        assert run.steps == [0, 1, 2, 3, 4]
        assert run.damaged == []


def test_a_run_that_cannot_be_fetched_is_not_resumed(url, server):
    server.refuses = always
    with pytest.raises(RunError, match="cannot be resumed"):
        sonde.watch(torch.nn.Linear(1, 1), dir=url, name="run", resume=True)


def test_names_that_lead_elsewhere_are_not_copied(url, tmp_path):
    write(tmp_path / "run", range(2), url=below(url, "run"))
    stored = StoredObjects(f"{url}/run")
    for name in ("live/r00000/evil.sh", "ranks/evil", "tensors/../../../evil", "evil.py"):
        stored.put(name, b"x")
    assert open_run(f"{url}/run").steps == [0, 1]
    assert not list((tmp_path / "cache").rglob("*evil*"))


def test_another_run_in_its_place_is_read_and_one_that_is_gone_is_not(url, tmp_path):
    write(tmp_path / "a" / "run", range(3), url=below(url, "run"))
    assert open_run(f"{url}/run").steps == [0, 1, 2]
    stored = StoredObjects(f"{url}/run")
    for name in objects(f"{url}/run"):
        stored.delete(name)
    with pytest.raises(RunError, match="no run at"):
        open_run(f"{url}/run")
    write(tmp_path / "b" / "run", range(2), url=below(url, "run"))
    assert open_run(f"{url}/run").steps == [0, 1]


def test_a_page_lists_a_bucket_and_follows_the_runs_that_were_opened(url, tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, range(2), url=below(url, name))
    with mirror.followed(url, every_s=0.05) as folder:
        listed = RunList(folder)
        assert {run.name for run in listed.runs()} == {"a", "b"}
        assert not list(Path(folder).rglob("*.parquet"))
        assert open_run(os.path.join(folder, "a")).steps == [0, 1]
        write(tmp_path / "c", range(2), url=below(url, "c"))
        wait_for(lambda: len(listed.runs()) == 3)
        before = listed.stamp(next(r for r in listed.runs() if r.name == "a"))
        write(tmp_path / "a", range(2, 4), url=below(url, "a"), resume_from_step=2)
        wait_for(lambda: listed.stamp(next(r for r in listed.runs() if r.name == "a")) != before)


def test_a_file_system_of_fsspec_serves_as_well(tmp_path, monkeypatch):
    monkeypatch.setenv("SONDE_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "run", range(3), url="memory://runs/run")
    assert stats("memory://runs/run") == stats(tmp_path / "run")
    write(tmp_path / "run2", range(3), url=f"file://{tmp_path}/store/run")
    assert stats(f"file://{tmp_path}/store/run") == stats(tmp_path / "run2")


def test_urls_are_taken_apart_and_their_keys_are_not_shown():
    secret = "s3://key:word@bucket/runs?region=x"
    assert shown(secret) == "s3://bucket/runs"
    assert below(secret, "a") == "s3://key:word@bucket/runs/a?region=x"
    assert above(below(secret, "a")) == (secret, "a")
    assert [is_url(p) for p in ("s3://b/x", "C:\\x", "runs", "./a://b", Path("a"))] == [
        True,
        False,
        False,
        False,
        False,
    ]
