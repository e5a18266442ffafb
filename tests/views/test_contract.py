"""The contract of views with those who draw: types are current, answers survive the wire."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

from sonde.views import envelope, ids, questions, specs, typescript
from sonde.views.questions import QuestionError, parse
from sonde.views.routes import ROUTES

ROOT = Path(__file__).parents[2]


def test_the_types_of_the_page_are_current():
    written = (ROOT / "web/src/api.gen.ts").read_text(encoding="utf-8")
    assert written == typescript.generate(), (
        "run: python -m sonde.views.typescript > web/src/api.gen.ts"
    )


def test_every_view_is_in_the_document():
    text = (ROOT / "web/API.md").read_text(encoding="utf-8")
    for route in ROUTES.values():
        assert f"| `{route.name}` | `{route.answer.__name__}` |" in text


def test_every_spec_is_frozen_and_slotted():
    for module in (specs, questions):
        for found in vars(module).values():
            if isinstance(found, type) and is_dataclass(found):
                assert found.__dataclass_params__.frozen, found
                assert "__slots__" in vars(found), found
                get_type_hints(found)


@dataclass(frozen=True)
class _Inner:
    a: np.ndarray
    b: float


@dataclass(frozen=True)
class _Outer:
    inner: tuple[_Inner, ...]
    u: np.ndarray
    s: str
    nothing: float


def test_arrays_survive_the_envelope_to_the_bit():
    odd = np.array([1.5, np.nan, np.inf, -0.0], np.float32)
    outer = _Outer(
        (_Inner(odd, 1.0), _Inner(np.arange(6, dtype=np.int32).reshape(2, 3), np.inf)),
        np.arange(5, dtype=np.uint8),
        "<script>\ud800\u2028",
        float("nan"),
    )
    kind, data = envelope.pack("test", outer, specs.RunState("r", "live", 3, "v"))
    assert kind == envelope.BINARY_TYPE
    found = envelope.unpack(data)
    assert found["run"] == {"id": "r", "status": "live", "last_step": 3, "version": "v"}
    spec = found["spec"]
    assert spec["inner"][0]["a"].tobytes() == odd.tobytes()
    np.testing.assert_array_equal(spec["inner"][1]["a"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(spec["u"], [0, 1, 2, 3, 4])
    assert spec["s"] == outer.s
    assert spec["nothing"] is None
    assert spec["inner"][1]["b"] is None


def test_arrays_begin_at_multiples_of_eight():
    for n in range(20):
        spec = _Outer((), np.zeros(n, np.uint8), "x" * n, 0.0)
        _, data = envelope.pack("test", spec)
        size = int.from_bytes(data[4:8], "little")
        assert (8 + size) % 8 == 0
        assert len(data) % 8 == 0


def test_an_answer_without_arrays_is_json():
    kind, data = envelope.pack("hits", specs.Hits((), 3))
    assert kind == envelope.JSON_TYPE
    assert envelope.unpack(data)["spec"] == {"hits": [], "left_out": 3}


@pytest.mark.parametrize(
    "name",
    ["", "h.3.attn", "h.3.attn#1", "h.3.attn/output/0", ".", "./input/0", ".#1/output/logits"],
)
def test_a_plain_name_is_its_own_id(name):
    assert ids.of_name(name) == (name or ".")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "..",
            "../x",
            "a/../b",
            "a..b",
            "./..",
            "/etc/passwd",
            "a%2e",
            "a\\b",
            "~0",
            "#1",
            "-x",
            ".x",
        ),
        *("<script>", "x" * 300, "a b", "é", "a\x00"),
    ],
)
def test_any_other_name_has_a_hash_for_an_id(name):
    found = ids.of_name(name)
    assert found.startswith("~")
    assert len(found) == 17
    assert found == ids.of_name(name)


def test_a_run_that_takes_an_old_name_has_another_id():
    assert ids.of_run("a", "1") != ids.of_run("a", "2")
    assert ids.of_run("../../x y", "1").startswith("x-y-")
    assert ids.of_run("", None).startswith("run-")


def test_questions_are_parsed_by_the_types_of_their_fields():
    found = parse(
        questions.KymographQuestion,
        [("run", "r"), ("site", "s"), ("first", "-3"), ("low", "1e-3"), ("scale", "log")],
    )
    assert (found.first, found.low, found.scale, found.columns) == (-3, 1e-3, "log", 512)
    found = parse(questions.LinesQuestion, [("run", "r"), ("name", "a"), ("name", "b")])
    assert found.name == ("a", "b")
    assert parse(questions.TreeQuestion, [("run", "r"), ("fold", "0")]).fold is False


@pytest.mark.parametrize(
    ("pairs", "what"),
    [
        ([], "`run` is missing"),
        ([("run", "r")], "`site` is missing"),
        ([("run", "r"), ("site", "s"), ("x", "1")], "no parameter `x`"),
        ([("run", "r"), ("run", "r"), ("site", "s")], "once"),
        ([("run", "r" * 301), ("site", "s")], "300 characters"),
        ([("run", "r"), ("site", "s"), ("columns", "1e3")], "whole number"),
        ([("run", "r"), ("site", "s"), ("columns", "9" * 50)], "whole number"),
        ([("run", "r"), ("site", "s"), ("columns", "1000000")], "between"),
        ([("run", "r"), ("site", "s"), ("low", "nan")], "between"),
        ([("run", "r"), ("site", "s"), ("scale", "cubic")], "one of auto, linear"),
        ([("run", "r"), ("site", "s"), ("first", "99999999999999999999")], "between"),
    ],
)
def test_bad_questions_are_refused_with_a_sentence(pairs, what):
    with pytest.raises(QuestionError, match=what):
        parse(questions.KymographQuestion, pairs)


def test_questions_of_one_run_name_it():
    for route in ROUTES.values():
        names = [f.name for f in fields(route.question)]
        assert ("run" in names) or not route.of_run
