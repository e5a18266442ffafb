"""Importers: files of other trackers as runs, so that the page and all that reads runs shows them.

None of them needs the package of the tracker: the files are read as they are.
"""

from sonde.imports.finding import import_runs as import_runs

__all__ = ["import_runs"]
