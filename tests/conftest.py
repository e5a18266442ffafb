"""What all tests share."""

import logging
import os
import signal
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings

import document
from sonde.sketch import Sketch, row

# Before JAX and torch begin. Eight devices of JAX's on one CPU, for what is spread over several. On
# a GPU, JAX takes 75 % of the memory in every process unless told otherwise, and other tests have
# none. Torch's code generator starts processes that import torch, for code as small as ours.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Times vary on shared machines; a law is no slower for being true.
settings.register_profile("sonde", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sonde")


class Memory:
    """A sink that keeps everything, to be looked at after `watch.close()` or `watch.flush()`."""

    name = "memory"

    def __init__(self) -> None:
        self.infos = {}
        self.batches = []
        self.scalars = {}
        self.events = []
        self.closed = None

    def sites(self, infos) -> None:
        for info in infos:
            assert self.infos.get(info.id) != info, "a site was declared twice"
            self.infos[info.id] = info

    def sketches(self, batch) -> None:
        self.batches.append(batch)

    def numbers(self, batch) -> None:
        for name, value in zip(batch.names, batch.values, strict=True):
            self.scalars.setdefault((batch.step, batch.phase), {})[name] = float(value)

    def event(self, event) -> None:
        self.events.append(event)

    def close(self, reason) -> None:
        assert self.closed is None, "closed twice"
        self.closed = reason

    def at(self, step=0, phase="train") -> dict[str, Sketch]:
        """Every site's sketch at a step, by name."""
        found: dict[str, Sketch] = {}
        for batch in self.batches:
            if (batch.step, batch.phase) == (step, phase):
                for i, site in enumerate(batch.ids.tolist()):
                    name = self.infos[site].site.name
                    found[name] = found.get(name, Sketch.empty()).merge(row(batch.sketches, i))
        return found

    @property
    def steps(self) -> list[tuple[int, str]]:
        """Steps and phases that have sketches, in the order in which they came."""
        return list(dict.fromkeys((b.step, b.phase) for b in self.batches))

    def counted(self, code) -> dict[tuple[str, str], int]:
        """Events of that code by place and message, with how often."""
        found: dict[tuple[str, str], int] = {}
        for event in self.events:
            if event.code == code:
                key = (event.where, event.message)
                found[key] = found.get(key, 0) + event.count
        return found


@pytest.fixture(scope="session")
def new_memory():
    """To be called for a sink that keeps everything, as often as a law needs one."""
    return Memory


@pytest.fixture
def memory():
    """A sink that keeps everything."""
    return Memory()


@pytest.fixture
def watching(tmp_path):
    """Watch a model with a sink in memory beside the run: `watch, memory = watching(model, ...)`.

    Records all kinds at every step, and no scalars or final parameters, unless told otherwise.
    """
    import sonde

    opened = []

    def start(model, optimizer=None, **options):
        memory = Memory()
        usual = {"every": 1, "log": "all", "dir": tmp_path}
        usual |= {"hyperparameters": False, "final_parameters": False}
        options = {**usual, "sinks": [memory], **options}
        opened.append(sonde.watch(model, optimizer, **options))
        return opened[-1], memory

    yield start
    for watch in opened:
        watch.close()


@pytest.fixture
def flushing():
    """To be called for a context after which a watch has warned of all there is to warn of."""

    @contextmanager
    def flushed(watch):
        yield
        watch.flush()

    return flushed


@pytest.fixture
def run_document(tmp_path):
    """To be called with a document: runs its code and commands in order, in an empty folder."""

    def run(path, *, blocks):
        assert sum(b.language == "python" for b in document.blocks(path)) >= blocks
        document.run(path, tmp_path)
        return tmp_path

    return run


@pytest.fixture
def ends():
    """A question that never ends fails here instead of stopping the suite."""

    def fail(*_):
        raise AssertionError("still at it after two minutes")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def unheard():
    """Warnings that were logged because warnings are errors in tests.

    A test that expects one takes it from the list; any other fails its test.
    """
    texts = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())
    logger = logging.getLogger("sonde.warnings")
    logger.addHandler(handler)
    yield texts
    logger.removeHandler(handler)
    assert texts == [], "a test warned of something it did not expect"
