"""Patterns stand for the names they say, and none of them takes long."""

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde._errors import SondeError
from sonde.record import Site
from sonde.store import patterns
from sonde.store.reading import traces
from sonde.store.reading.catalogue import Catalogue

pytestmark = pytest.mark.usefixtures("ends")

LONG = "a" * 60

HOSTILE_PATTERNS = {
    "optional parts": "re:" + "a?" * 60 + "a" * 60,
    "repeated groups": "re:(a+)+b",
    "repeated alternatives": "re:(a|a)*b",
    "repeated optional parts": "re:(a?){60}b",
    "many repeats": "re:" + "a*" * 60 + "b",
    "many stars": "*a" * 40 + "*b",
    "stars and marks": "*?" * 40 + "b",
    "many depths": ".".join(["**"] * 30) + ".x",
    "depths between names": ".".join(["**", "a"] * 20) + ".x",
}
"""Patterns that take exponential time where matching goes back. One more is one more line."""

HOSTILE_NAMES = [
    LONG,
    "a" * 5000,
    ".".join("a" * 60),
    ".".join(["a"] * 400),
    "",
    "\udcff",
    "a\x00b",
]


@pytest.mark.parametrize("kind", HOSTILE_PATTERNS)
def test_no_pattern_takes_long_on_any_name(kind):
    pattern = HOSTILE_PATTERNS[kind]
    assert len(patterns.select(pattern, HOSTILE_NAMES)) == len(HOSTILE_NAMES)
    for name in HOSTILE_NAMES:
        traces.matches(pattern, name)
    sites = Catalogue(tuple(Site(name, "output", 0, "0") for name in HOSTILE_NAMES))
    sites.select(pattern, missing="ok")


@pytest.mark.parametrize("kind", HOSTILE_PATTERNS)
def test_no_search_of_a_page_takes_long(kind, tmp_path):
    from sonde.views.structure import tree

    found = tree._matching(
        HOSTILE_PATTERNS[kind][:200], [(name, "Linear") for name in HOSTILE_NAMES]
    )
    assert len(found) == len(HOSTILE_NAMES)


@pytest.mark.parametrize("pattern", ["re:(", "re:[", "re:a{1000}{1000}{1000}", "re:(?P<x", "re:\\"])
def test_what_is_no_expression_is_an_error_that_says_so(pattern):
    with pytest.raises(SondeError, match="is not a regular expression"):
        patterns.select(pattern, ["a"])


@pytest.mark.parametrize("pattern", ["re:(?=a)a", "re:(?<!x)a", r"re:(a)\1"])
def test_what_would_have_to_go_back_is_refused_with_a_remedy(pattern):
    with pytest.raises(SondeError, match=r"not supported.*use a glob"):
        patterns.select(pattern, ["a"])


names = st.lists(st.text("ab.0", max_size=8), max_size=8)


@given(st.text("ab.*?[]0!", max_size=8), names)
def test_globs_are_those_of_the_standard_library(pattern, found):
    if pattern.startswith("re:"):
        return
    right = [n == pattern or fnmatch.fnmatchcase(n, pattern) for n in found]
    assert patterns.select(pattern, found) == right


@given(st.from_regex(r"(a|b|\.|a\*|\(ab\)\?|\[ab\]\+){0,5}", fullmatch=True), names)
def test_expressions_are_those_of_the_standard_library(expression, found):
    right = [re.fullmatch(expression, n) is not None for n in found]
    assert patterns.select(f"re:{expression}", found) == right


def by_recursion(parts, names):
    """The definition."""
    if not parts:
        return not names
    if parts[0] == "**":
        return any(by_recursion(parts[1:], names[n:]) for n in range(len(names) + 1))
    return bool(names) and parts[0] in {"*", names[0]} and by_recursion(parts[1:], names[1:])


@given(
    st.lists(st.sampled_from(["**", "*", "a", "b"]), max_size=5),
    st.lists(st.sampled_from(["a", "b"]), max_size=5),
)
def test_components_are_matched_as_defined(parts, names):
    found = patterns.components_match(parts, names, lambda p, n: p in {"*", n})
    assert found == by_recursion(parts, names)
