"""The document of a report: the built page and an archive in one HTML file that needs no server.

Its policy forbids every request and every script but the page's own, which it names by hash. What
comes from a run is compressed and written in base64, except for the title, which is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from typing import Final

from sonde._errors import SondeError
from sonde.present import bundle
from sonde.present.archive import Archive

_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="robots" content="noindex">
<link rel="icon" href="data:,">
<title>{title}</title>
</head>
<body data-sonde-report>
<noscript>Sonde draws this report with JavaScript, which is switched off.</noscript>
"""

_POLICY: Final = (
    "default-src 'none'; script-src 'sha256-{digest}'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)

_BLOCK: Final = '<script type="text/plain" data-sonde="{name}">{text}</script>\n'
_ENDS: Final = re.compile(r"</script|<script|<!--", re.IGNORECASE)
_TAIL: Final = '<script type="module">{script}</script>\n</body>\n</html>\n'


def document(title: str, archive: Archive, index: str) -> str:
    """The whole file."""
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    font = bundle.read(bundle.FONT) or b""
    named = [("font", base64.b64encode(font).decode("ascii")), ("index", index)]
    named += [(str(i), text) for i, text in enumerate(archive.blocks)]
    return "".join(
        (
            _HEAD.format(policy=_POLICY.format(digest=digest), title=html.escape(title)),
            *(_BLOCK.format(name=name, text=text) for name, text in named),
            _TAIL.format(script=script),
        )
    )


def overhead(title: str) -> int:
    """Bytes of a report that holds nothing."""
    return len(document(title, Archive(0), "").encode())


def _script() -> str:
    """The page's module. Nothing in it may end the element that it stands in."""
    found = bundle.read(bundle.SCRIPT)
    if found is None:
        raise SondeError("The page was not built into this installation, and reports need it.")
    text = found.decode()
    if _ENDS.search(text):
        raise SondeError("The built page cannot stand in a report: it holds a tag of a script.")
    return text
