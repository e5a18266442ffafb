"""The rank of a process is what its launcher says."""

import pytest

from sonde.capture.launch import rank_and_world

SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        (SLURM, (3, 8)),
        ({**SLURM, "RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),
        ({"SLURM_PROCID": "3"}, (0, 1)),
        ({"RANK": "x", "WORLD_SIZE": "-1"}, (0, 1)),
        ({"RANK": "x", **SLURM}, (3, 8)),
        ({"RANK": "5", "WORLD_SIZE": ""}, (5, 1)),
        ({"RANK": "²", "WORLD_SIZE": "4"}, (0, 4)),
    ],
)
def test_the_rank_is_the_launchers(environment, expected):
    assert rank_and_world(environment=environment) == expected


def test_what_is_given_counts():
    assert rank_and_world(1, 2, SLURM) == (1, 2)
    assert rank_and_world(0, None, SLURM) == (0, 8)
