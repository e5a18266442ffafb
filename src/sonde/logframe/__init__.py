"""LogFrames: a run as the pandas frame of Track & Visualize, and back.

    frame = run.to_logframe()
    frame.to_parquet("numerics.parquet")      # or sonde.logframe.write(frame, path)
    frame = sonde.read_logframe("final_logframe.pkl")
    run = sonde.logframe.to_run(frame, "runs/imported")
    sonde.logframe.to_wandb(frame)            # an artifact of the active W&B run

Columns have two levels: `metadata` (name, type, tensor_type, step, dtype), `scalar_stats`, and
`exponent_counts` (-inf, whole exponents, +inf).
"""

from sonde.logframe.files import SUFFIXES as SUFFIXES
from sonde.logframe.files import read_logframe as read_logframe
from sonde.logframe.files import write as write
from sonde.logframe.of_run import describe as describe
from sonde.logframe.of_run import of_run as of_run
from sonde.logframe.rates import rates as rates
from sonde.logframe.schema import validate as validate
from sonde.logframe.to_run import to_run as to_run
from sonde.logframe.wandb import from_wandb as from_wandb
from sonde.logframe.wandb import to_wandb as to_wandb
