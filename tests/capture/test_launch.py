"""The rank of a process is what its launcher says."""

import pytest

from sonde.capture.launch import Launch, launched, rank_and_world, run_name, together

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


# -- one run for all ranks -------------------------------------------------------------------------


class Ranks:
    """A store that ranks share: the first proposal counts."""

    def __init__(self):
        self.agreed = {}

    def agree(self, key, proposal):
        return self.agreed.setdefault(key, proposal)


def names(environment, *, agree=None, world=2):
    said = []
    found = [
        run_name(Launch(rank, world, None, 0), lambda: "new", agree, said.append, environment)
        for rank in range(world)
    ]
    return found, said


def test_a_process_on_its_own_needs_no_name():
    assert names({}, world=1) == ([None], [])


def test_ranks_agree_through_their_store():
    store = Ranks()
    first = run_name(Launch(0, 2, None, 0), lambda: "a", store.agree, print, {})
    assert first == "a"
    assert list(store.agreed.values()) == ["a"]


def test_the_variable_comes_first():
    assert names({"SONDE_RUN": "mine"}, agree=Ranks().agree) == (["mine", "mine"], [])


def test_without_a_store_the_job_of_the_launcher_names_the_run():
    found, said = names({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}, world=2)
    assert found[0].startswith("job-12.0")
    assert not said


def test_ranks_that_cannot_agree_say_what_to_do():
    found, said = names({"TORCHELASTIC_RUN_ID": "none"})
    assert found == [None, None]
    assert "`name=`" in said[0]
    assert "SONDE_RUN" in said[0]


def test_a_restart_is_another_launch():
    environment = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job"}
    first = launched(None, None, environment)
    second = launched(None, None, {**environment, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert (first.id, second.id, second.restarts) == ("job/0", "job/1", 1)
    assert together(first, None, lambda: "x") == "job/0"
    assert together(first, Ranks().agree, lambda: "x") == "x"
    assert together(launched(None, None, {}), Ranks().agree, lambda: "x") is None
