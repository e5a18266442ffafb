"""The text that the demo learns from."""

import re

from hypothesis import given
from hypothesis import strategies as st

from sonde.demo.text import DEPTHS, NUMBERS, logbook


@given(length=st.integers(0, 20_000), seed=st.integers(0, 5))
def test_text_has_its_length_and_begins_like_every_longer_one(length, seed):
    text = logbook(length, seed)
    assert len(text) == length
    assert logbook(length + 100, seed).startswith(text)


def test_text_differs_by_seed():
    assert logbook(1000, seed=0) != logbook(1000, seed=1)


def test_text_is_plain_and_has_few_characters():
    text = logbook(400_000)
    assert text.isascii()
    assert len(set(text)) < 64


def test_sums_in_the_text_are_right():
    sums = re.findall(r"(\w+) [\w ]+ and (\w+) [\w ]+ are (\w+) ", logbook(100_000))
    number = {word: value for value, word in enumerate(NUMBERS)}
    assert len(sums) > 100
    for a, b, total in sums:
        assert number[a.lower()] + number[b] == number[total]


def test_each_dive_comes_up_the_way_it_went_down():
    for dive in logbook(50_000).split("\n\n")[:-1]:
        down = re.findall(r"^At (\w+) fathoms", dive, re.MULTILINE)
        up = re.search(r"^Then up: (.*), air\.$", dive, re.MULTILINE)
        assert tuple(down) == DEPTHS[: len(down)]
        assert up is not None
        assert up[1].split(", ") == down[::-1]
