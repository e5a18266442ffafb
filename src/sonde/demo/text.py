"""A logbook to learn from: an endless text with structure that a small network can pick up.

A probe is let down into the sea, tells what it meets at each depth, and comes up again. There is
something to learn at every scale: spelling, the plural after a number, which animal lives how deep,
sums that are right, counting down, rhymes. Written by a grammar, so no file has to be shipped:
the same length and seed give the same text everywhere.
"""

from __future__ import annotations

import random
from typing import Final

NUMBERS: Final = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
)
DEPTHS: Final = ("ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty")

_HOURS: Final = ("before dawn", "at noon", "at dusk", "at midnight", "after the rain")
_WINDS: Final = ("north", "east", "south", "west")
_SEAS: Final = ("calm", "rough", "grey", "bright", "asleep")

_ZONES: Final = (
    ("green", (("herring", "herring"), ("turtle", "turtles"), ("seal", "seals"))),
    ("blue", (("squid", "squid"), ("tuna", "tuna"), ("dolphin", "dolphins"))),
    ("dark", (("eel", "eels"), ("ray", "rays"), ("whale", "whales"))),
    ("black", (("lantern fish", "lantern fish"), ("crab", "crabs"), ("shrimp", "shrimp"))),
)
"""The colour of the water and who lives there, a zone for every two depths."""

_DEEDS: Final = (
    ("passes", "pass"),
    ("turns away", "turn away"),
    ("looks at us", "look at us"),
    ("follows us down", "follow us down"),
    ("does not see us", "do not see us"),
)
_COUPLETS: Final = (
    ("The deeper we go,", "the less we know."),
    ("Where there is no light,", "the small ones are bright."),
    ("What the water will keep,", "it keeps in the deep."),
    ("A line and a weight,", "and then we wait."),
    ("Not all that is near", "is easy to hear."),
    ("Slow is the tide", "and the sea is wide."),
)


def logbook(length: int, seed: int = 0) -> str:
    """The first `length` characters of a logbook; dive after dive, each its own paragraph."""
    rng = random.Random(seed)  # noqa: S311  # a text, not a secret
    parts: list[str] = []
    size = 0
    while size < length:
        parts.append(_dive(rng, number=1 + len(parts) % 99))
        size += len(parts[-1])
    return "".join(parts)[:length]


def _dive(rng: random.Random, number: int) -> str:
    lines = [
        f"Dive {number}, {rng.choice(_HOURS)}.",
        f"The wind is {rng.choice(_WINDS)} and the sea is {rng.choice(_SEAS)}.",
    ]
    reached = rng.randint(2, len(DEPTHS))
    lines += [_at_depth(rng, level) for level in range(reached)]
    if rng.random() < 0.5:
        lines += rng.choice(_COUPLETS)
    lines.append(_ascent(reached))
    return "\n".join(lines) + "\n\n"


def _at_depth(rng: random.Random, level: int) -> str:
    colour, animals = _ZONES[level // 2]
    one, many = rng.choice(animals)
    line = f"At {DEPTHS[level]} fathoms the water is {colour}. "
    if rng.random() < 0.3:
        return line + _sum(rng, many)
    count = rng.randint(1, 6)
    deed_of_one, deed_of_many = rng.choice(_DEEDS)
    if count == 1:
        return line + f"One {one} {deed_of_one}."
    return line + f"{NUMBERS[count].capitalize()} {many} {deed_of_many}."


def _sum(rng: random.Random, many: str) -> str:
    a, b = rng.randint(2, 5), rng.randint(2, 5)
    return f"{NUMBERS[a].capitalize()} {many} and {NUMBERS[b]} {many} are {NUMBERS[a + b]} {many}."


def _ascent(reached: int) -> str:
    return f"Then up: {', '.join(reversed(DEPTHS[:reached]))}, air."
