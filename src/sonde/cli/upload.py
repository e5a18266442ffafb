"""`sonde upload`: what waits in a spool goes to its object store."""

from __future__ import annotations

import argparse
import os

HELP = "upload a run to its object store"
GROUP = "Manage"
EXAMPLES = ("sonde upload runs/first --to s3://bucket/runs/first",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="DIR", help="a run in a spool, as named in the warning, or a run to copy"
    )
    parser.add_argument("--to", metavar="URL", help="of the run, if it is not in a spool")


def run(arguments: argparse.Namespace) -> int:
    from sonde._errors import SondeError
    from sonde.cli import _text
    from sonde.store import locations
    from sonde.store.remote import caches
    from sonde.store.remote.objects import below, shown
    from sonde.store.remote.upload import Uploader

    root = locations.resolve(arguments.run)
    folder = caches.origin_of(os.path.dirname(root), "spool")
    url = arguments.to or (folder and below(folder, os.path.basename(root)))
    if not url:
        raise SondeError(f"`{arguments.run}` is in no spool. Say where it goes with `--to URL`.")
    uploader = Uploader(root, url)
    try:
        uploader.upload()
    except Exception as error:
        raise SondeError(f"Cannot upload to `{shown(url)}`: {error}.") from error
    _text.say(f"{uploader.state.uploaded} files uploaded to `{shown(url)}`.")
    return 0
