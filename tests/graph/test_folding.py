"""Folding: what repeats is one box, whatever its period."""

import pytest

from sonde.graph.folding import ModuleTree, repeats_of
from sonde.record import GraphModule


def folded(text):
    """The letters of a text as they fold: `abab` is `a×2 b×2`, and so on."""
    found = repeats_of(text, lambda a, b: a == b)
    return [[f"{run[0]}×{len(run)}" if len(run) > 1 else run[0] for run in runs] for runs in found]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("aaaa", [["a×4"]]),
        ("aab", [["a"], ["a"], ["b"]]),
        ("ababab", [["a×3", "b×3"]]),
        ("abab", [["a"], ["b"], ["a"], ["b"]]),
        ("xabcabcabcy", [["x"], ["a×3", "b×3", "c×3"], ["y"]]),
        ("abababa", [["a×3", "b×3"], ["a"]]),
        ("aabaabaab", [["a×3", "a×3", "b×3"]]),
        ("", []),
    ],
)
def test_sequences_that_repeat_at_least_three_times_fold(text, wanted):
    assert folded(text) == wanted


def test_alternating_modules_of_a_deep_network_are_two_lines_in_the_tree():
    kinds = ("Linear", "ReLU")
    modules = [GraphModule("", "Sequential")]
    modules += [GraphModule(str(i), kinds[i % 2], "", 72 * (1 - i % 2)) for i in range(400)]
    tree = ModuleTree(modules)
    runs = tree.runs(0)
    assert [len(run) for run in runs] == [200, 200]
    assert [tree.branches[run[1]].name for run in runs] == ["2", "3"]
    assert tree.folded_path["398"] == ("0", "*")
    assert tree.folded_path["399"] == ("1", "*")
