"""Hooks of the documentation site: pages made of files that live elsewhere in the repository.

The format, the architecture, the changelog, the examples, the tutorials and the help of the command
line each have one source. Links between documents work on GitHub and on the site: here they are
turned from paths in the repository into pages of the site; links to other files become text.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
TUTORIALS: Final = "examples/tutorials"
PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "src/sonde/store/FORMAT.md": "format.md",
}
"""Documents outside docs/, with their pages."""

LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^()\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of other files."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(ROOT / "src"))
    os.environ["COLUMNS"] = "96"  # of the help of the command line
    made = {
        page: (ROOT / source).read_text(encoding="utf-8")
        for source, page in PAGES.items()
        if page != "index.md"
    }
    for source in examples():
        made[page_of(source)] = example_page(ROOT / source)
    made["reference/cli.md"] = command_line()
    for uri, content in made.items():
        new = File.generated(config, uri, content=content)
        if uri.startswith("examples/"):
            new.inclusion = new.inclusion.__class__.NOT_IN_NAV
        files.append(new)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links between files of the repository into links between pages."""
    here = source_of(page.file.src_uri)
    return LINK.sub(lambda found: linked(found, here, page.file.src_uri), markdown)


def linked(found: re.Match[str], here: str, uri: str) -> str:
    """A link of a document at `here`, as it is on the page `uri`; its text if it has no page."""
    mark, text, target = found.groups()
    path, sharp, anchor = target.partition("#")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    to = page_of(wanted)
    if to is None:
        return text
    relative = posixpath.relpath(to, posixpath.dirname(uri) or ".")
    return f"{mark}[{text}]({relative}{sharp}{anchor})"


def examples() -> list[str]:
    """Every example, as a path in the repository."""
    return sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "examples").rglob("*.py"))


def page_of(source: str) -> str | None:
    """The page of a file in the repository; None where there is none."""
    if source in PAGES:
        return PAGES[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.startswith(f"{TUTORIALS}/"):
        return source.removeprefix("examples/").replace(".py", ".md")
    if source.startswith("examples/") and source.endswith(".py"):
        return source.replace(".py", ".md")
    return None


def source_of(uri: str) -> str:
    """The file in the repository of which a page is made."""
    for source, page in PAGES.items():
        if page == uri and source != "README.md":
            return source
    if uri.startswith("tutorials/"):
        return f"examples/{uri.replace('.md', '.py')}"
    return f"docs/{uri}"


def example_page(path: Path) -> str:
    """A page of a script: its `# %% [markdown]` cells as text, everything else as code."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    if "# %%" not in text:
        return f"# {path.name}\n\n```python\n{text}```\n"
    head, *cells = re.split(r"^# %%", text, flags=re.MULTILINE)
    title, _, intro = head.strip().strip('"').partition("\n")
    parts = [f"# {title.rstrip('.')}", intro.strip(), f"This page is the script `{name}`."]
    for cell in cells:
        kind, _, body = cell.partition("\n")
        if kind.strip() == "[markdown]":
            parts.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
        else:
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def command_line() -> str:
    """The help of `sonde` and of each verb."""
    from sonde.cli import parsers

    parts = ["# Command line", "`sonde --help` and `sonde VERB --help` print these texts."]
    for name, parser in parsers().items():
        text = parser.format_help().strip()
        parts.append(f"## sonde {name}".rstrip() + f"\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"
