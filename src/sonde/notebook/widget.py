"""The widget: the page in the output of a cell.

It begins with an archive of the answers that it shows first, so it needs no round trip. The rest is
asked of the kernel's server, or where a browser cannot reach that, through the kernel.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from queue import SimpleQueue
from typing import Any, Final

from sonde._errors import SondeWarning
from sonde._require import require
from sonde.notebook.kernel_server import KernelServer, Pushing
from sonde.present import bundle
from sonde.present.archive import Question

_EXTRA: Final = "notebook"


@cache
def widget_class() -> type[Any]:
    """The class of widgets. anywidget is optional, so it is made when the first is needed."""
    base: Any = require("anywidget", extra=_EXTRA).AnyWidget
    traitlets = require("traitlets", extra=_EXTRA)
    script = (bundle.read(bundle.SCRIPT) or b"").decode()

    class RunWidget(base):  # type: ignore[misc]  # anywidget is optional, so it is Any
        """A run in a notebook. `address` is what it shows, as the text after `#` on the page."""

        _esm = script
        address = traitlets.Unicode("").tag(sync=True)
        height = traitlets.Int(640).tag(sync=True)
        _solo = traitlets.Unicode("").tag(sync=True)
        _archive = traitlets.Dict().tag(sync=True)
        _door = traitlets.Dict().tag(sync=True)

        def __init__(
            self,
            server: KernelServer | None,
            run: str,
            *,
            asked: Sequence[Question],
            archive: Mapping[str, str],
            address: str,
            height: int,
            solo: str = "",
            picture: bytes | None = None,
        ) -> None:
            door = {} if server is None else {"base": server.base, "token": server.token}
            super().__init__(
                address=address, height=height, _solo=solo, _archive=dict(archive), _door=door
            )
            self._picture = picture
            self._outbox = Outbox(self._deliver)
            self._pushing = (
                None if server is None else Pushing(server, run, asked, self._outbox.put)
            )
            self.on_msg(_heard)

        @property
        def pushing(self) -> Pushing | None:
            return self._pushing

        @property
        def undelivered(self) -> int:
            """Updates that could not be sent to the notebook."""
            return self._outbox.undelivered

        def close(self) -> None:
            """Take the widget away; nothing is pushed to it any more."""
            if self._pushing is not None:
                self._pushing.end()
            self._outbox.close()
            super().close()

        def _deliver(self, message: Mapping[str, object], body: bytes | None) -> None:
            self.send(dict(message), buffers=[] if body is None else [body])

        def _repr_mimebundle_(self, **options: object) -> object:
            """The widget, and a picture for hosts and files without a kernel."""
            found = super()._repr_mimebundle_(**options)
            data, more = found if isinstance(found, tuple) else (found, {})
            if data is not None and self._picture is not None:
                data = {**data, "image/png": self._picture}
            return (data, more) if isinstance(found, tuple) else data

    return RunWidget


class Outbox:
    """Messages to a widget, sent from one thread: marimo lets only threads of its own send."""

    def __init__(self, deliver: Callable[[Mapping[str, object], bytes | None], None]) -> None:
        self._deliver = deliver
        self._waiting: SimpleQueue[tuple[Mapping[str, object], bytes | None] | None] = SimpleQueue()
        self.undelivered = 0
        """Messages that could not be sent."""
        thread = thread_class()(target=self._run, name="sonde-outbox", daemon=True)
        thread.start()

    def put(self, message: Mapping[str, object], body: bytes | None) -> None:
        """Send this soon."""
        self._waiting.put((message, body))

    def close(self) -> None:
        """Send what waits, then end."""
        self._waiting.put(None)

    def _run(self) -> None:
        while (found := self._waiting.get()) is not None:
            try:
                self._deliver(*found)
            except Exception as error:  # of any host: a closed socket, a session that has ended
                self._report(error)

    def _report(self, error: Exception) -> None:
        """Count what was not sent, and warn once: the kernel and the training go on."""
        self.undelivered += 1
        if self.undelivered == 1:
            text = (
                f"A widget could not be updated ({type(error).__name__}: {error}). Its output "
                "stays as it was. Run the cell again to follow the run."
            )
            warnings.warn(text, SondeWarning, stacklevel=2)


def thread_class() -> type[threading.Thread]:
    """Threads that may send to a notebook: in marimo those that belong to its session."""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        found: type[threading.Thread] = marimo.Thread
        return found
    return threading.Thread


def _heard(widget: Any, message: Mapping[str, Any], _buffers: object) -> None:
    """A message of a page: a question, or what is on screen."""
    pushing: Pushing | None = widget.pushing
    if pushing is None:
        return
    if message.get("kind") == "ask":
        pushing.answer(int(message["id"]), str(message["view"]), _pairs(message["question"]))
    elif message.get("kind") == "shown":
        pushing.show([(str(view), _pairs(asked)) for view, asked in message["questions"]])


def _pairs(question: Any) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in question]
