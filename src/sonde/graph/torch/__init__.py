"""The graph of a PyTorch model, taken while it runs.

`taker.py` decides which passes are looked at, `passing.py` holds the hooks of such a pass,
`trace.py` what was seen in it, `origins.py` where the data in each tensor came from.
"""

from sonde.graph.torch.passing import TensorAccess as TensorAccess
from sonde.graph.torch.passing import skipped_code as skipped_code
from sonde.graph.torch.taker import GraphTaker as GraphTaker
