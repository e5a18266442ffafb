"""Nothing is written or deleted outside a run, or in a run that is not the writer's."""

import os
import shutil

import made
import pytest
from faulty import QuickFiles

import sonde
from sonde.store import Writer, open_run
from sonde.store.writing.compaction import compact

N = 2


def write(writer, steps):
    for step in steps:
        writer.sketches(made.batch(step, N))
        writer.numbers(made.loss(step))
        writer.flush()


def make(path, steps=range(70)):
    with Writer(path, compact=False, flush_s=60, files=QuickFiles()) as writer:
        writer.sites(made.sites(N))
        write(writer, steps)
    return path


def names_below(folder):
    return sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)


def link(path, folder, target):
    """Put the folder of a run elsewhere, with a link in its place."""
    target.parent.mkdir(exist_ok=True)
    if (path / folder).exists():
        shutil.move(path / folder, target)
    else:
        target.mkdir()
    os.symlink(target, path / folder)
    return target


LINKED = ["live", "stats", "ranks", "events", "sites", "numbers", "tensors", "live/r00000"]


@pytest.mark.parametrize("folder", LINKED)
def test_a_run_with_a_linked_folder_is_not_resumed(tmp_path, folder):
    path = make(tmp_path / "run", range(3))
    target = link(path, folder, tmp_path / "elsewhere" / "kept")
    before = names_below(target)
    with pytest.raises(sonde.RunError, match=r"is a symbolic link.*folder"):
        Writer(path, resume_from_step=3)
    assert names_below(target) == before


@pytest.mark.parametrize("folder", ["live", "stats", "numbers", "ranks", "live/r00000"])
def test_a_run_with_a_linked_folder_is_not_compacted(tmp_path, folder):
    path = make(tmp_path / "run")
    target = link(path, folder, tmp_path / "elsewhere" / "kept")
    (target / ".tmp-0123-old").write_text("another program's")
    os.utime(target / ".tmp-0123-old", (0, 0))
    inside, outside = names_below(path), names_below(target)
    with pytest.raises(sonde.RunError, match="is a symbolic link"):
        compact(str(path))
    assert names_below(target) == outside
    assert names_below(path) == inside


@pytest.mark.parametrize("folder", ["live", "ranks", "live/r00000"])
def test_a_link_that_appears_while_writing_is_not_followed(tmp_path, folder):
    said = []
    path, target = tmp_path / "run", tmp_path / "elsewhere" / "kept"
    writer = Writer(path, compact=False, flush_s=60, heartbeat_s=0.05, on_problem=said.append)
    writer.sites(made.sites(N))
    write(writer, range(2))
    link(path, folder, target)
    before = names_below(target)
    write(writer, range(2, 4))
    writer.close()
    assert names_below(target) == before
    assert any("is a link" in text for text in said)


@pytest.mark.parametrize("how", ["the directory", "what is in it"])
def test_a_run_begun_in_the_place_of_another_gets_nothing_of_it(tmp_path, how):
    said = []
    path = tmp_path / "run"
    old = Writer(path, compact=False, flush_s=60, heartbeat_s=0.05, on_problem=said.append)
    old.sites(made.sites(N))
    write(old, range(2))
    if how == "the directory":
        shutil.rmtree(path)
    else:
        for entry in path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    with Writer(path, rank=1, world_size=2, compact=False, flush_s=60) as new:
        new.sites(made.sites(N))
        write(new, range(5, 7))
        write(old, range(2, 4))
        old.close()
    counts = old.counts
    assert counts.handed == counts.written + sum(counts.dropped.values())
    assert any("another run" in text for text in said)
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        assert [a["rank"] for a in run.info["attempts"]] == [1]
        assert set(run.stats(stat="count")["step"].to_pylist()) == {5, 6}
    assert not [name for name in names_below(path) if "r00000" in name]


def test_a_heartbeat_of_another_run_is_named(tmp_path):
    path = make(tmp_path / "run", range(2))
    other = make(tmp_path / "other", range(2))
    for file in (other / "ranks").glob("r00000.*.json"):
        shutil.copy(file, path / "ranks")
    with pytest.warns(sonde.SondeWarning, match="another run"), open_run(path) as run:
        damaged = run.damaged
    assert len(damaged) == 3
    assert {d.problem for d in damaged} == {"belongs to another run"}
