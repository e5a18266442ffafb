"""The sketch: the mergeable summary of a tensor, and everything read off it. numpy only."""

from sonde.sketch.columns import concatenate as concatenate
from sonde.sketch.columns import cut as cut
from sonde.sketch.columns import from_dense as from_dense
from sonde.sketch.columns import merge_groups as merge_groups
from sonde.sketch.columns import take as take
from sonde.sketch.columns import without_bins as without_bins
from sonde.sketch.formats import FORMATS as FORMATS
from sonde.sketch.formats import Format as Format
from sonde.sketch.formats import Loss as Loss
from sonde.sketch.histograms import equal_histograms as equal_histograms
from sonde.sketch.model import Exponents as Exponents
from sonde.sketch.model import Histogram as Histogram
from sonde.sketch.model import Sketch as Sketch
from sonde.sketch.model import columns_of as columns_of
from sonde.sketch.model import row as row
from sonde.sketch.staircase import quantiles as quantiles
from sonde.sketch.statistics import STATISTICS as STATISTICS
from sonde.sketch.statistics import NumberFormat as NumberFormat
from sonde.sketch.statistics import Statistic as Statistic
from sonde.sketch.statistics import needs_bins as needs_bins
from sonde.sketch.statistics import needs_sums as needs_sums
from sonde.sketch.statistics import statistic as statistic

__all__ = [
    "FORMATS",
    "STATISTICS",
    "Exponents",
    "Format",
    "Histogram",
    "Loss",
    "NumberFormat",
    "Sketch",
    "Statistic",
    "columns_of",
    "concatenate",
    "cut",
    "equal_histograms",
    "from_dense",
    "merge_groups",
    "needs_bins",
    "needs_sums",
    "quantiles",
    "row",
    "statistic",
    "take",
    "without_bins",
]
