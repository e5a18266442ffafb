"""The store: what keeps a run on disk and reads it back. `FORMAT.md` is the contract."""

from sonde.store.reader import Run as Run
from sonde.store.reader import open_run as open_run
from sonde.store.writer import Writer as Writer
