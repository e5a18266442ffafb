"""The prose linter finds what it should, and finds nothing in this tree."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import prose


def test_documents_messages_and_docstrings_have_no_phrase_of_the_list():
    assert list(prose.phrases()) == []


def test_spelling_is_right():
    pytest.importorskip("codespell_lib")
    assert prose.spelling() == []


def test_it_reads_comments_docstrings_and_messages_but_no_code():
    text = '"""Inside of a model."""\nnobody = 1  # for somebody\nprint("goes on without it")\n'
    assert sorted(line for _, line in prose.of_python(text)) == [
        "Inside of a model.",
        "for somebody",
        "goes on without it",
    ]


def test_it_reads_documents_outside_code():
    text = "Text with `inside of`.\n```python\nnobody\n```\nend\n"
    assert list(prose.of_markdown(text)) == [(1, "Text with ``."), (5, "end")]
