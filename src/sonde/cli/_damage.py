"""What a verb says when part of a run could not be read: on standard error, with exit code 1."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from sonde.cli import _text

if TYPE_CHECKING:
    from sonde.store import Run

_SHOWN: Final = 5


def mention(run: Run) -> int:
    """Name damaged files; the exit code is 1 if there are any."""
    damaged = run.damaged
    for damage in damaged[:_SHOWN]:
        said = _text.clean(f"sonde: not read: {damage.file} {damage.problem}")
        print(said, file=sys.stderr)
    if len(damaged) > _SHOWN:
        print(f"sonde: and {len(damaged) - _SHOWN} more, see `sonde show`", file=sys.stderr)
    return 1 if damaged else 0
