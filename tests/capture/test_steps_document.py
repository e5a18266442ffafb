"""The document about steps and phases: its code runs as it stands, and does what it says."""

from pathlib import Path

import sonde

DOCUMENT = Path(__file__).parents[2] / "docs" / "steps.md"


def test_the_code_about_steps_does_what_it_says(run_document):
    ran = run_document(DOCUMENT, blocks=6) / "runs"

    def steps(name, phase, **more):
        with sonde.open(ran / name) as run:
            found = run.stats("0", kind="output", phase=phase, **more)
            return found["step"].tolist()

    assert steps("both", "eval") == [0, 10, 20, 30]
    assert steps("all-evaluations", "eval") == [0, 7, 14, 21, 28, 35]
    assert steps("all-evaluations", "train") == [0, 10, 20, 30]
    assert steps("validation", "validation") == [19]
    assert steps("validation", "test") == [1000]
    assert steps("gan", "train/fake") == [0, 10]
    with sonde.open(ran / "accelerate") as run:
        assert sorted(run.steps) == [0, 1]
