"""Static figures of a run, with matplotlib: `sonde.plot.heatmap(run)`, or `run.plot.heatmap()`.

Each function asks the view that the page draws too, and draws its spec. It takes a run (or the path
of one) and returns the `Figure`; `ax=` draws into axes of yours instead of a new figure.
"""

from sonde.plot.comparisons import compare as compare
from sonde.plot.curves import lines as lines
from sonde.plot.distributions import exponents as exponents
from sonde.plot.distributions import histogram as histogram
from sonde.plot.distributions import kymograph as kymograph
from sonde.plot.heatmaps import heatmap as heatmap
from sonde.plot.networks import graph as graph

__all__ = ["compare", "exponents", "graph", "heatmap", "histogram", "kymograph", "lines"]
