"""Tree, graph, panels, search and tints: the structure of the model, and colours for it."""

import numpy as np
import pytest
from told import ALL_NAN, BLOCKS, MODULES, STEPS, TYPES, asked, rms

from sonde._errors import SondeError
from sonde.views import specs
from sonde.views.questions import QuestionError
from sonde.views.runs.opened_run import NotFoundError

PER_BLOCK = len(TYPES)


def edges_of(level):
    return {(e.source, e.target): e.count for e in level.edges}


def test_the_tree_folds_blocks_and_shows_the_inside_of_the_first(subject):
    tree = asked(subject, "tree")
    assert [(n.path, n.depth, n.count) for n in tree.nodes] == [
        ("", 0, 1),
        ("embed", 1, 1),
        ("h", 1, 1),
        ("h.0", 2, BLOCKS),
        ("h.0.attn", 3, 1),
        ("h.0.mlp", 3, 1),
        ("head", 1, 1),
    ]
    block = tree.nodes[3]
    assert block.label == f"0…{BLOCKS - 1}"
    assert [(i.node, i.module, i.label) for i in block.instances] == [
        (f"h.{i}", f"h.{i}", str(i)) for i in range(BLOCKS)
    ]
    for i, node in enumerate(tree.nodes[1:], start=1):
        assert node.parent < i
        assert tree.nodes[node.parent].depth == node.depth - 1
    assert tree.nodes[5].kinds == ("output", "param_grad")
    assert tree.left_out == 0


def test_the_tree_of_an_instance_and_without_folds(subject):
    assert [n.path for n in asked(subject, "tree", module="h.2").nodes] == [
        "h.2",
        "h.2.attn",
        "h.2.mlp",
    ]
    unfolded = asked(subject, "tree", module="h", fold=False)
    assert [n.path for n in unfolded.nodes if n.depth == 1] == [f"h.{i}" for i in range(BLOCKS)]
    with pytest.raises(NotFoundError, match="no module"):
        asked(subject, "tree", module="../h")


def test_a_level_is_what_flows_with_its_repeats_folded(subject):
    level = asked(subject, "level")
    assert [(n.id, n.kind, n.count) for n in level.nodes] == [
        ("./input/0", "input", 1),
        ("embed", "module", 1),
        ("h.0", "module", BLOCKS),
        ("head", "module", 1),
        ("./output/0", "output", 1),
    ]
    assert edges_of(level) == {
        ("./input/0", "embed"): 3,
        ("embed", "h.0"): 2,
        ("h.0", "head"): 3,
        ("head", "./output/0"): 3,
    }
    block = level.nodes[2]
    assert (block.label, block.flow, block.group) == (f"h[0…{BLOCKS - 1}]", "chain", "h.0")
    assert block.can_open
    assert block.parameters == 64 * PER_BLOCK
    assert [i.node for i in block.instances] == [f"h.{i}" for i in range(BLOCKS)]
    head = level.nodes[3]
    assert [(f.label, f.value) for f in head.facts] == [("", "8"), ("", "8"), ("bias", "False")]
    assert head.inputs[0].shape == (5, 8)
    assert not head.can_open
    assert level.edges[0].label == "5×8"
    assert level.edges[0].bytes == 5 * 8 * 4
    assert (level.has_flow, level.passes, level.left_out) == (True, 3, 0)


def test_a_level_unfolds_a_group_or_all(subject):
    for unfold in ("h.0", "*"):
        level = asked(subject, "level", unfold=[unfold])
        assert [n.id for n in level.nodes if n.id.startswith("h.")] == [
            f"h.{i}" for i in range(BLOCKS)
        ]
        assert ("h.1", "h.2") in edges_of(level)
    assert len(asked(subject, "level", fold=False).nodes) == BLOCKS + 4


def test_the_inside_of_a_block_knows_its_way_up_and_its_siblings(subject):
    level = asked(subject, "level", node="h.2")
    assert [n.id for n in level.nodes if n.kind == "module"] == ["h.2.attn", "h.2.mlp"]
    assert [c.node for c in level.crumbs] == [".", "h.2"]
    assert [i.node for i in level.crumbs[1].instances] == [f"h.{i}" for i in range(BLOCKS)]
    assert edges_of(level) == {
        ("h.2/input/0", "h.2.attn"): 3,
        ("h.2.attn", "h.2.mlp"): 3,
        ("h.2.mlp", "h.2/output/0"): 3,
    }
    with pytest.raises(NotFoundError, match="no call"):
        asked(subject, "level", node="h.9")


def test_a_panel_has_a_section_per_kind_and_says_what_is_missing(subject):
    panel = asked(subject, "panel", node="h.1.mlp")
    assert [(s.kind, [x.name for x in s.sites]) for s in panel.sections] == [
        ("output", ["h.1.mlp/output/0"]),
        ("param_grad", ["h.1.mlp/param_grad/weight"]),
    ]
    assert {m.kind for m in panel.missing} >= {"input", "output_grad", "param", "update"}
    assert "'output', 'param_grad', 'update'" in {m.kind: m.how for m in panel.missing}["update"]
    assert (panel.parent, panel.type, panel.parameters) == ("h.1", "Linear", 64)
    assert asked(subject, "panel", module="h.1.mlp").sections == panel.sections
    assert asked(subject, "panel", node="h.1").metrics == ("norm",)
    with pytest.raises(QuestionError, match="Give `node` or `module`"):
        asked(subject, "panel")


def test_the_panel_of_an_output_is_that_tensor(subject):
    panel = asked(subject, "panel", node="h.1/output/0")
    assert [[x.name for x in s.sites] for s in panel.sections] == [["h.1/output/0"]]
    assert [m.kind for m in panel.missing] == ["output_grad"]


@pytest.mark.parametrize(
    ("q", "found"),
    [
        ("mlp", [f"h.{i}.mlp" for i in range(BLOCKS)]),
        ("h.*.attn", [f"h.{i}.attn" for i in range(BLOCKS)]),
        ("H.1", ["h.1", "h.1.attn", "h.1.mlp"]),
        ("1 attn", ["h.1.attn"]),
        ("re:h\\.[02]\\.mlp$", ["h.0.mlp", "h.2.mlp"]),
        ("=h.3", ["h.3"]),
        ("=.", ["(root)"]),
        ("=h", ["h"]),
        ("nothing", []),
    ],
)
def test_search_finds_parts_globs_expressions_and_exact_paths(subject, q, found):
    assert [hit.path for hit in asked(subject, "search", q=q).hits] == found


def test_search_is_cut_and_says_so(subject):
    hits = asked(subject, "search", q="", limit=3)
    assert (len(hits.hits), hits.left_out) == (3, len(MODULES) + 1 - 3)


@pytest.mark.parametrize("q", ["re:(a+)+$", "re:(a|aa)*zb", "re:((a|a))*z", "re:a?" * 20 + "zb"])
def test_expressions_that_go_back_for_ever_elsewhere_are_answered(subject, q):
    assert asked(subject, "search", q=q).hits == ()


@pytest.mark.parametrize("q", ["re:((", "re:(?=a)a", "re:[z-a]"])
def test_expressions_that_are_none_are_refused(subject, q):
    with pytest.raises(SondeError, match="re:"):
        asked(subject, "search", q=q)


def test_a_tint_is_the_statistic_of_each_box_at_the_step(told, subject):
    tint = asked(subject, "tint", kind="output", stat="rms", step=7)
    level = asked(subject, "level")
    assert [n.id for n in tint.nodes] == [n.id for n in level.nodes]
    boxes = {n.id: n for n in tint.nodes}
    assert tint.step == 7
    assert boxes["head"].value == pytest.approx(rms(told.seen("head/output/0", 7)), rel=1e-6)
    assert boxes["head"].site == "head/output/0"
    blocks = [rms(told.seen(f"h.{i}/output/0", 7)) for i in range(BLOCKS)]
    folded = boxes["h.0"]
    assert folded.sites == BLOCKS
    np.testing.assert_allclose(
        [folded.value, folded.low, folded.median, folded.high],
        [blocks[0], min(blocks), np.median(blocks), max(blocks)],
        rtol=1e-6,
    )
    line = tint.sparks[boxes["head"].row]
    np.testing.assert_allclose(
        line[: len(STEPS)],
        [rms(told.seen("head/output/0", s)) for s in STEPS][: len(line)],
        rtol=1e-6,
    )


def test_a_tint_falls_back_on_what_is_inside(told, subject):
    """A block has no parameters of its own: it shows the largest of those inside it."""
    tint = asked(subject, "tint", kind="param_grad", stat="max_abs", step=3)
    block = next(n for n in tint.nodes if n.id == "h.0")
    assert block.is_inside
    inside = [np.abs(told.seen(f"h.{i}.mlp/param_grad/weight", 3)).max() for i in range(BLOCKS)]
    assert block.value == pytest.approx(inside[0])
    assert block.high == pytest.approx(max(inside))
    assert block.sites == BLOCKS


def test_a_tint_marks_what_is_not_finite_and_shows_the_step_before(subject):
    tint = asked(subject, "tint", node="h.2", kind="output", step=21)
    flags = {n.id: (n.flag, n.value) for n in tint.nodes}
    assert flags[ALL_NAN.partition("/")[0]] == (specs.NONFINITE, None)
    assert flags["h.2.attn"][0] == specs.NUMBER
    between = asked(subject, "tint", kind="output", step=32)
    assert between.step == 30
    assert any("step 30" in note for note in between.notes)


def test_a_tint_of_a_metric_and_without_lines(subject):
    tint = asked(subject, "tint", metric="norm", step=4, unfold=["*"])
    values = {n.id: n.value for n in tint.nodes}
    assert values["h.1"] == -4.0
    assert values["head"] is None
    assert asked(subject, "tint", kind="output", sparks=False).sparks.size == 0
