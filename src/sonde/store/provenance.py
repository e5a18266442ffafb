"""Where a run comes from: versions, command line, git state and host, if cheaply told."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from sonde._signals import IGNORING_OS, pass_on
from sonde._version import VERSION

_REPORTED: Final = ("numpy", "torch", "jax", "flax", "transformers", "lightning", "accelerate")
_SECRET: Final = re.compile(r"token|secret|passw|api[-_]?key|credential", re.IGNORECASE)
_GIT_TIMEOUT_S: Final = 2.0
_NO_COMMANDS: Final = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
"""The folder may be a stranger's, and its `.git/config` names commands: none of them is run."""

_GIT_ENVIRONMENT: Final = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # for git before 2.45: a fetch would run `uploadpack`
}
_FILTER: Final = re.compile(r"(local|worktree)\s+filter\.", re.IGNORECASE)


def versions() -> dict[str, str]:
    """Versions of Python, Sonde and those frameworks that this process has already imported."""
    found = {"python": platform.python_version(), "sonde": VERSION, "pyarrow": pa.__version__}
    for name in _REPORTED:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = str(version)
    return found


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """The command line, with values of arguments that sound like secrets blotted out."""
    shown: list[str] = []
    hide_next = False
    for argument in sys.argv if arguments is None else arguments:
        name, equals, _ = argument.partition("=")
        is_secret = bool(_SECRET.search(name)) and argument.startswith("-")
        if hide_next and not argument.startswith("-"):
            shown.append("***")
        elif is_secret and equals:
            shown.append(f"{name}=***")
        else:
            shown.append(argument)
        hide_next = is_secret and not equals
    return shown


def git() -> dict[str, object] | None:
    """Commit, branch and whether tracked files were changed; None outside a repository."""
    found = _git("rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if found is None or len(found) != 2:
        return None
    return {"commit": found[0], "branch": found[1], "is_dirty": _is_dirty()}


def host() -> dict[str, object]:
    """The machine this process runs on."""
    return {
        "hostname": hostname(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }


def hostname() -> str:
    try:
        return socket.gethostname()
    except OSError as error:
        pass_on(error)
        return "unknown"


def process_space() -> str:
    """Equal for processes that see the same process ids: one boot of one machine, one container."""
    parts = []
    with IGNORING_OS, open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    with IGNORING_OS:
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts) if len(parts) == 2 else ""


def process_start(pid: int) -> str | None:
    """When a living process began, in the kernel's clock ticks; None if it is not alive.

    An empty string where the system does not tell (no `/proc`) but the process is alive.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # the name in it may be any bytes
            fields = file.read().rpartition(b")")[2].decode("ascii", "replace").split()
        return None if fields[0] in {"Z", "X"} else fields[19]
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return None
    except (OSError, IndexError) as error:
        pass_on(error)
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError as error:
        pass_on(error)
    return ""


def _is_dirty() -> bool | None:
    """Whether tracked files were changed; None if finding out would run a command of the folder.

    A repository can name filters in its own configuration, and git runs them to compare files.
    """
    settings = _git("config", "--list", "--show-scope", "--name-only")
    if settings is None or any(_FILTER.match(setting) for setting in settings):
        return None
    changes = _git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
    return None if changes is None else bool(changes)


def _git(*arguments: str) -> list[str] | None:
    try:
        done = subprocess.run(
            ["git", *_NO_COMMANDS, *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_GIT_ENVIRONMENT},
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        pass_on(error)
        return None
    return done.stdout.split("\n")[:-1] if done.stdout else []
