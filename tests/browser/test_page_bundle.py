"""What is shipped of the page: small, whole, and what `web/` was built into."""

import gzip
import hashlib
import json
from importlib import resources

STATIC = resources.files("sonde.present") / "static"
MODULE_BYTES = 400_000
COMPRESSED_BYTES = 140_000
ALL_BYTES = 470_000


def files():
    return {entry.name: entry.read_bytes() for entry in STATIC.iterdir()}


def test_the_module_has_at_most_400_kilobytes():
    """One module for page, widget and report; its typeface and licences come on top."""
    found = files()
    assert len(found["app.js"]) <= MODULE_BYTES
    assert len(gzip.compress(found["app.js"], 9)) <= COMPRESSED_BYTES
    assert sum(len(content) for content in found.values()) <= ALL_BYTES


def test_the_files_are_those_of_one_build():
    found = files()
    built = json.loads(found.pop("build.json"))["files"]
    assert {name: hashlib.sha256(content).hexdigest() for name, content in found.items()} == {
        name: file["sha256"] for name, file in built.items()
    }


def test_nothing_in_it_names_another_host():
    found = files()
    for name in ("app.js", "index.html"):
        text = found[name].decode().replace("http://www.w3.org/", "")  # names of namespaces
        assert "http://" not in text, name
        assert "https://" not in text, name
