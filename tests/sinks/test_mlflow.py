"""MLflow: a local server has what the run has."""

import socket
import subprocess
import sys
import time
import urllib.request

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
    for name in {*list(expected.numbers)[::9], "activations/odd/max_abs"}:  # a request each
        values = expected.numbers[name]
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
