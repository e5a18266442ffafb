"""Two runs side by side: which tensors match, how far apart they are, where they part first.

found = sonde.compare("runs/before", "runs/after")
print(found)
found.distances()        # a row per step and pair of sites
"""

from sonde.comparison.divergence import Divergence as Divergence
from sonde.comparison.result import Comparison as Comparison
from sonde.comparison.result import compare as compare
