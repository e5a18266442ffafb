"""Servers for tests."""

import pytest
import served


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Runs: a good one, one with the strangest names, and two that are broken."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_text("SECRET-7f3a")
    found = outside / "runs"
    served.make_run(found / "good", ["a", "b", "c"])
    served.make_run(found / "strange", served.NAMES)
    cut = served.make_run(found / "cut", ["a"])
    about = cut / "run.json"
    about.write_bytes(about.read_bytes()[: about.stat().st_size // 2])
    halved = served.make_run(found / "halved", ["a", "b"])
    for path in halved.rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return found


@pytest.fixture(scope="session")
def server(folder, tmp_path_factory):
    """One server for all tests that only ask."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    found = served.serve(folder, log, "--port", "0")
    yield found
    found.stop()
    assert "Traceback" not in found.said()


@pytest.fixture
def start(tmp_path):
    """Start servers of a test's own: `start(folder, "--no-token")`."""
    started = []

    def begin(folder, *options):
        log = tmp_path / f"server-{len(started)}.log"
        port = () if "--port" in options else ("--port", "0")
        started.append(served.serve(folder, log, *port, *options))
        return started[-1]

    yield begin
    for one in started:
        one.stop()
