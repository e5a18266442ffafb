"""Views of a LogFrame in a notebook."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping

from sonde.logframe import to_run
from sonde.logframe.schema import Frame
from sonde.notebook.views import RunViews
from sonde.store.reading.run import open_run


def views_of(frame: Frame, scalars: Mapping[str, Mapping[int, float]] | None = None) -> RunViews:
    """Views of a LogFrame, as a run that lasts as long as the process. `scalars` are its lines."""
    folder = tempfile.mkdtemp(prefix="sonde-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return RunViews(open_run(to_run(frame, os.path.join(folder, "logframe"), scalars=scalars)))
