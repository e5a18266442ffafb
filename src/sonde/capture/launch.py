"""How this process was launched: its rank, how many there are, and what they agree on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from sonde._errors import SondeError

_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate, deepspeed
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script without it has no step
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # mpirun of Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # mpiexec of MPICH and Intel MPI
)
_JOBS: Final = (
    ("TORCHELASTIC_RUN_ID",),  # torchrun --rdzv-id
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PBS_JOBID",),
    ("LSB_JOBID",),
)
_RESTARTS: Final = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_UNNAMED: Final = count()

Agree = Callable[[str, str], str | None]
"""Takes a key and a proposal; returns what the first rank proposed, None if ranks cannot agree."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A process among those that train together. `id` is the same for all that were launched
    together, and another one after a restart; None if that is not known."""

    rank: int
    world_size: int
    id: str | None
    restarts: int

    @property
    def label(self) -> str:
        return f"Rank {self.rank} of {self.world_size}"


def launched(
    rank: int | None, world_size: int | None, environment: Mapping[str, str] = os.environ
) -> Launch:
    """This process, as given or as its launcher says.

    Raises:
        SondeError: if there is no such rank.
    """
    rank, world_size = rank_and_world(rank, world_size, environment)
    if not 0 <= rank < world_size:
        raise SondeError(f"`rank` must lie in 0..world_size-1, got {rank} of {world_size}.")
    restarts = max(_number(environment.get(name, "")) or 0 for name in _RESTARTS)
    job = _job(environment)
    known = f"{job}/{restarts}" if job and world_size > 1 else None
    return Launch(rank, world_size, known, restarts)


def run_name(
    launch: Launch,
    new_name: Callable[[], str],
    agree: Agree | None,
    warn: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> str | None:
    """The name of a run without one: the same on all ranks. None for a process on its own.

    `SONDE_RUN` comes first, then what the ranks agree on, then the job of the launcher.
    """
    given = environment.get("SONDE_RUN")
    if given or launch.world_size < 2:
        return given or None
    n = next(_UNNAMED)
    agreed = None if agree is None else agree(f"sonde/run/{n}", new_name())
    if agreed is not None:
        return agreed
    job = _job(environment)
    if job:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"job-{job}")
        return f"{name}-{n}" if n else name
    warn(
        f"{launch.label} records a run of its own: the ranks could not agree on a name. Pass "
        "`name=`, set SONDE_RUN, or call `torch.distributed.init_process_group` before "
        "`sonde.watch`."
    )
    return None


def together(launch: Launch, agree: Agree | None, new_id: Callable[[], str]) -> str | None:
    """What all ranks of this launch are known by."""
    if launch.world_size < 2:
        return None
    agreed = None if agree is None else agree("sonde/launch", new_id())
    return agreed or launch.id


def rank_and_world(
    rank: int | None = None,
    world_size: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[int, int]:
    """The rank of this process and the number of processes: as given, as launched, or 0 of 1."""
    found = _launched(environment)
    return (
        found[0] if rank is None else rank,
        found[1] if world_size is None else world_size,
    )


def _job(environment: Mapping[str, str]) -> str:
    """The job that the launcher runs; "" if it has no name. torchrun's own is `none`."""
    for names in _JOBS:
        parts = [environment.get(name, "") for name in names]
        if all(part and part != "none" for part in parts):
            return ".".join(parts)
    return ""


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
