"""Figures of LogFrames, under the names of `tandv.viz`. `interactive` makes a widget of one."""

from sonde.compat.tandv.viz.interact import interactive as interactive
from sonde.compat.tandv.viz.plots import exp_hist as exp_hist
from sonde.compat.tandv.viz.plots import scalar_global_heatmap as scalar_global_heatmap
from sonde.compat.tandv.viz.plots import scalar_line as scalar_line
from sonde.compat.tandv.viz.selection import FacetException as FacetException
from sonde.compat.tandv.viz.selection import QueryException as QueryException

__all__ = ["exp_hist", "interactive", "scalar_global_heatmap", "scalar_line"]
