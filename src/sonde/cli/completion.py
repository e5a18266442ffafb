"""`sonde completion`: a script that completes verbs and options in a shell."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Final

HELP = "print a script that completes verbs and options in your shell"
GROUP = "Set up"
EXAMPLES = (
    "sonde completion bash >> ~/.bashrc",
    "sonde completion zsh >> ~/.zshrc",
    "sonde completion fish > ~/.config/fish/completions/sonde.fish",
)

_OPTION: Final = re.compile(r"--[a-z][a-z0-9-]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(_SHELLS), help="the shell that completes")


def run(arguments: argparse.Namespace) -> int:
    from sonde.cli import parsers, verbs

    options = {
        name: ["--help", *_OPTION.findall(parser.format_usage())]
        for name, parser in parsers().items()
        if name
    }
    print(_SHELLS[arguments.shell]({n: m.HELP for n, m in verbs().items()}, options))
    return 0


def _bash(helps: Mapping[str, str], options: Mapping[str, list[str]]) -> str:
    cases = "\n".join(f'    {name}) options="{" ".join(options[name])}" ;;' for name in helps)
    return f"""\
_sonde() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" options=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(helps)} --help --version" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _sonde sonde"""


def _zsh(helps: Mapping[str, str], options: Mapping[str, list[str]]) -> str:
    described = "\n".join(f"    {_quoted(f'{name}:{text}')}" for name, text in helps.items())
    cases = "\n".join(f"    {name}) options=({' '.join(options[name])}) ;;" for name in helps)
    return f"""\
_sonde() {{
  local -a verbs options
  verbs=(
{described}
  )
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  case "$words[2]" in
{cases}
  esac
  if [[ "$PREFIX" == -* ]]; then
    compadd -- $options
  else
    _files
  fi
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
compdef _sonde sonde"""


def _fish(helps: Mapping[str, str], options: Mapping[str, list[str]]) -> str:
    lines = []
    for name, text in helps.items():
        lines.append(f"complete -c sonde -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}")
        lines += [
            f"complete -c sonde -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
            for option in options[name]
        ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_SHELLS: Final[dict[str, Callable[[Mapping[str, str], Mapping[str, list[str]]], str]]] = {
    "bash": _bash,
    "fish": _fish,
    "zsh": _zsh,
}
