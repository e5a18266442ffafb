"""A device that refuses a launch: the native path leaves the tensor to Python, and nothing behind.

There is no GPU here: tensors of the host claim to lie on one, and its driver refuses every launch.
"""

import ctypes

import pytest
import torch
from torch import nn

from sonde.capture.torch import passes
from sonde.kernels import c
from sonde.record import Site

pytestmark = pytest.mark.skipif(
    passes.EXCHANGE is None or not c.available(),
    reason="there is no native path without the extensions, or with this torch",
)

ON_CUDA = 2


class View(ctypes.Structure):
    """The beginning of what the exchange tells of a tensor."""

    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32))


LOOK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(View))
STREAM = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)
CURRENT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
LAUNCH = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3
)


class Exchange(ctypes.Structure):
    """The exchange of DLPack, version 1."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("others", ctypes.c_void_p * 4),
        ("view", LOOK),
        ("stream", STREAM),
    )


class RefusingDevice:
    """What claims that tensors lie on a GPU, and refuses to launch anything there."""

    NAME = ctypes.create_string_buffer(b"dlpack_exchange_api")

    def __init__(self) -> None:
        self.is_there = False
        self.refused = 0
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        known = Exchange.from_address(address(passes.EXCHANGE, self.NAME.value))
        look = LOOK(ctypes.cast(known.view, ctypes.c_void_p).value)

        def view(x, found):
            failed = look(x, found)
            if not failed and self.is_there:
                found.contents.device_type = ON_CUDA
            return failed

        def launch(*_):
            self.refused += 1
            return 1

        self._launch, self._current = LAUNCH(launch), CURRENT(lambda _context: 0)
        self._exchange = Exchange(known.version, known.others, LOOK(view), STREAM(lambda *_: 0))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        name = ctypes.cast(self.NAME, ctypes.c_char_p)
        self.capsule = new(ctypes.addressof(self._exchange), name, None)

    def appear(self, book) -> None:
        """From now on the tensors and rows of the host are said to be on that device."""
        self.is_there = True
        launch, current = (
            ctypes.cast(f, ctypes.c_void_p).value for f in (self._launch, self._current)
        )
        book.on_cuda(0, launch, current, 0, 1, 1, 1, 1, [(c.DTYPES["float32"], 1, 1, 0)])


def test_a_gradient_counts_once_after_a_launch_that_was_refused(watching, monkeypatch):
    device = RefusingDevice()
    monkeypatch.setattr(passes, "EXCHANGE", device.capsule)
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))
    watch, memory = watching(model, log=["output", "output_grad"])
    for step in range(4):
        if step == 2:  # until then, all of it takes the native path
            table = watch._session.capture.recorder.table_on(torch.device("cpu"))
            device.appear(table.book)
        model(torch.randn(4, 6)).square().mean().backward()
        watch.step()
    watch.close()
    assert device.refused > 0
    for step in (1, 2, 3):
        for path, width in (("0", 5), ("1", 5), ("2", 3)):
            for kind in ("output", "output_grad"):
                assert memory.at(step)[Site(path, kind, 0, "0").name].count == 4 * width
