"""The names of Track & Visualize (`tandv`) on the engine of Sonde.

from sonde.compat.tandv.track.torch import track
from sonde.compat.tandv.track.common import read_pickle
from sonde.compat.tandv import viz
"""
