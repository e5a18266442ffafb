"""`sonde view`: the explorer, in a browser."""

from __future__ import annotations

import argparse
import ipaddress
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonde.present.doorway import RedirectFile

HELP = "open the page in a browser, live while a run trains"
GROUP = "Read"
EXAMPLES = ("sonde view runs",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default="runs",
        help="of runs, a run, a URL of either, or a file with a LogFrame (default: runs)",
    )
    parser.add_argument(
        "--port", type=int, default=7007, help="where to listen (default: 7007, or one of the next)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="where to listen (default: this machine only)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    parser.add_argument(
        "--no-token", action="store_true", help="serve everyone on this machine, without a token"
    )
    parser.add_argument(
        "--allow-host",
        metavar="NAME[:PORT]",
        action="append",
        default=[],
        help="a further name under which the server is reached; may be given again",
    )
    parser.add_argument(
        "--prefix",
        metavar="PATH",
        default="",
        help="the path below which a proxy offers the server, if it does not take it off",
    )
    parser.add_argument(
        "--load",
        metavar="FILE",
        action="append",
        default=[],
        help="a Python file that defines statistics to show; may be given again",
    )


def run(arguments: argparse.Namespace) -> int:
    from sonde._errors import SondeError
    from sonde.store.remote import mirror
    from sonde.store.remote.objects import is_url, shown

    is_loopback = _is_loopback(arguments.host)
    if arguments.no_token and not is_loopback:
        raise SondeError(
            f"`--no-token` is for this machine only; with `--host {arguments.host}` anyone on the "
            "network could read your runs."
        )
    if not 0 <= arguments.port <= 65535:
        raise SondeError(f"`--port` must lie between 0 and 65535, got {arguments.port}.")
    if os.path.isfile(arguments.folder):
        return _view_logframe(arguments)
    _load(arguments.load)
    if is_url(arguments.folder):
        with mirror.followed(arguments.folder) as folder:
            arguments.folder = shown(arguments.folder)
            return _serve(arguments, folder, is_loopback=is_loopback)
    return _serve(arguments, os.path.abspath(arguments.folder), is_loopback=is_loopback)


def _view_logframe(arguments: argparse.Namespace) -> int:
    """Show a LogFrame as the run that it was made of, kept in a temporary folder."""
    import tempfile

    from sonde._errors import SondeError
    from sonde.logframe import SUFFIXES, read_logframe, to_run

    name, suffix = os.path.splitext(os.path.basename(arguments.folder))
    if suffix not in SUFFIXES:
        raise SondeError(
            f"`{arguments.folder}` is a file. Pass a folder of runs, a run, or a LogFrame "
            f"({', '.join(SUFFIXES)})."
        )
    _load(arguments.load)
    with tempfile.TemporaryDirectory(prefix="sonde-") as folder:
        to_run(read_logframe(arguments.folder), os.path.join(folder, name or "logframe"))
        return _serve(arguments, folder, is_loopback=_is_loopback(arguments.host))


def _serve(arguments: argparse.Namespace, folder: str, *, is_loopback: bool) -> int:
    from sonde._errors import SondeError

    try:
        from sonde.present import server
        from sonde.present.doorway import RedirectFile
    except ImportError as error:
        raise SondeError(str(error)) from None
    if not is_loopback:
        print(
            f"sonde: listening on {arguments.host}: whoever has the address with its token can "
            "read these runs. The connection is not encrypted.",
            file=sys.stderr,
        )
    try:
        with RedirectFile() as doorway:
            server.serve(
                folder,
                host=arguments.host,
                port=arguments.port,
                token=None if arguments.no_token else server.fresh_token(),
                allowed_hosts=arguments.allow_host,
                prefix=arguments.prefix,
                shown_as=arguments.folder,
                on_start=lambda where: _tell(where, arguments, doorway),
                on_stop=doorway.close,
            )
    except ImportError as error:
        raise SondeError(str(error)) from None
    return 0


def _load(files: list[str]) -> None:
    """Let the processes that read runs load these files."""
    from sonde._errors import SondeError
    from sonde.sketch.added import LOAD

    for file in files:
        if not os.path.isfile(file):
            raise SondeError(f"`--load {file}`: there is no such file.")
    given = [os.path.abspath(file) for file in files]
    if given:
        os.environ[LOAD] = os.pathsep.join([*given, *filter(None, [os.environ.get(LOAD)])])


def _tell(where: str, arguments: argparse.Namespace, doorway: RedirectFile) -> None:
    print(f"Serving `{arguments.folder}` at\n\n    {where}\n", flush=True)
    if "SSH_CONNECTION" in os.environ and _is_loopback(arguments.host):
        port = where.rpartition(":")[2].partition("/")[0]
        print(f"From your own machine: ssh -L {port}:127.0.0.1:{port} THIS_HOST\n", flush=True)
    print("Press Ctrl-C to stop.", flush=True)
    if not arguments.no_browser and _has_screen():
        import webbrowser

        # Arguments of processes can be read by everyone on the machine: no token in them.
        webbrowser.open(doorway.open(where) if "?token=" in where else where)


def _has_screen() -> bool:
    if sys.platform in {"darwin", "win32"}:
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
