"""MLflow: a local server has what the run has."""

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import sonde
from sonde.metrics import names
from sonde.sinks import MLflow

mlflow = pytest.importorskip("mlflow", reason="MLflow asks for an older pyarrow than ours")

GROUPS = {"activation": "activations", "parameter": "parameters", "gradient": "gradients"}


def key(site, stat):
    group, _, rest = names.of_statistic(site, stat).partition("/")
    return f"{GROUPS[group]}/{rest}".replace("[", "_").replace("]", "_")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server with a database of its own."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = f"sqlite:///{folder}/mlflow.db"
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", store, "--artifacts-destination", str(folder)]
    with subprocess.Popen([sys.executable, "-m", "mlflow", *words]) as process:
        address = f"http://127.0.0.1:{port}"
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
        process.terminate()


def test_a_server_has_what_the_run_has(trained, told, asked, server, unheard):
    mlflow.set_tracking_uri(server)
    with mlflow.start_run() as active:
        run = trained([MLflow(timeout_s=200.0, **asked)], close_timeout_s=200.0)
        mlflow.log_metric("loss", 1.0)
    client = mlflow.MlflowClient(server)
    expected = told(run, key)
    assert len(expected.numbers) >= 50 * 4
    largest = sys.float_info.max
    assert "activations/odd/max_abs" in expected.numbers
    for name, values in expected.numbers.items():
        found = {m.step: m.value for m in client.get_metric_history(active.info.run_id, name)}
        whole = np.clip(list(values.values()), -largest, largest)
        np.testing.assert_array_equal([found[step] for step in values], whole)
    history = client.get_metric_history(active.info.run_id, "sonde/loss")
    assert {m.step: m.value for m in history} == expected.scalars["loss"]
    assert [m.value for m in client.get_metric_history(active.info.run_id, "loss")] == [1.0]
    (text,) = unheard
    unheard.clear()
    assert text.startswith("The sink `MLflow`: MLflow has no histograms")


def test_no_active_run_is_refused(tmp_path, trained):
    with pytest.raises(sonde.SondeError, match="There is no active MLflow run"):
        trained(["mlflow"], dir=tmp_path / "none")


def test_a_server_that_is_not_there_costs_nothing(trained, unheard, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    sink = MLflow("0" * 32, tracking_uri="http://127.0.0.1:9", timeout_s=60.0)
    run = trained([sink], steps=3, close_timeout_s=60.0)
    assert len(run.scalars("loss")) == 3
    (text,) = unheard
    unheard.clear()
    assert text.startswith("The sink `MLflow` failed: ")


@pytest.fixture
def sleeping():
    """The address of a server that takes requests and answers none, until the test is over."""
    awake = threading.Event()

    class Asleep(BaseHTTPRequestHandler):
        def do_POST(self):
            awake.wait()

    with ThreadingHTTPServer(("127.0.0.1", 0), Asleep) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        awake.set()
        server.shutdown()
        thread.join()


def test_a_server_that_sleeps_holds_nothing_back_and_what_is_lost_is_counted(
    trained, unheard, sleeping, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    sink = MLflow("0" * 32, tracking_uri=sleeping, timeout_s=0.5)
    run = trained([sink])
    assert run.status == "finished"
    assert len(run.scalars("loss")) == 100
    (text,) = unheard
    unheard.clear()
    assert text.startswith("The sink `MLflow` did not finish in time.")
    lost = run.sql("select sum(count) as lost from events where code = 'sink_lost'")
    assert lost["lost"][0] >= 100
