"""Which rank of how many this process is, from what its launcher has put into the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate, deepspeed
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script without it has no step
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # mpirun of Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # mpiexec of MPICH and Intel MPI
)


def rank_and_world(
    rank: int | None = None,
    world_size: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[int, int]:
    """The rank of this process and the number of processes: as given, as launched, or 0 of 1."""
    launched = _launched(environment)
    return (
        launched[0] if rank is None else rank,
        launched[1] if world_size is None else world_size,
    )


def _launched(environment: Mapping[str, str]) -> tuple[int, int]:
    """The first launcher that names both counts: other variables may be left over from a job."""
    for names in _LAUNCHERS:
        rank, world_size = (_number(environment.get(name, "")) for name in names)
        if rank is not None and world_size is not None and rank < world_size:
            return rank, world_size
    rank = _number(environment.get("RANK", ""))
    return rank or 0, _number(environment.get("WORLD_SIZE", "")) or 1


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
