"""Help, completion and `sonde info`: what a newcomer asks first."""

import json
import re
import shlex
import shutil
import subprocess

import pytest

import sonde
from sonde.cli import GROUPS, main, parsers, verbs

VERBS = verbs()


def printed(capsys, *arguments):
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_help_lists_every_verb_once_under_a_group():
    text = parsers()[""].format_help()
    for group in GROUPS:
        assert f"\n{group}:\n" in text
    for name, module in VERBS.items():
        assert len(re.findall(rf"^  {name}  ", text, re.MULTILINE)) == 1
        assert module.HELP in text


@pytest.mark.parametrize("name", VERBS)
def test_the_help_of_a_verb_has_an_example_that_parses(name):
    made = parsers()
    text = made[name].format_help()
    assert VERBS[name].EXAMPLES
    for line in VERBS[name].EXAMPLES:
        assert line in text
        words = shlex.split(line.partition(" >")[0])
        assert words[:2] == ["sonde", name]
        made[""].parse_args(words[1:])


def bash_replies(script, *words):
    """What bash offers after these words."""
    line = " ".join(shlex.quote(word) for word in words)
    code = f"{script}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words) - 1}\n_sonde\n"
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_verbs_options_and_files(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    script = printed(capsys, "completion", "bash")
    assert bash_replies(script, "sonde", "s") == ["show"]
    assert set(bash_replies(script, "sonde", "")) >= set(VERBS)
    assert bash_replies(script, "sonde", "export", "--ht") == ["--html"]
    assert bash_replies(script, "sonde", "show", "ru") == ["runs"]


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_a_completion_script_names_every_verb_and_is_accepted_by_its_shell(shell, capsys):
    script = printed(capsys, "completion", shell)
    for name, parser in parsers().items():
        assert name in script
        for option in re.findall(r"--[a-z-]+", parser.format_usage() if name else ""):
            assert option.lstrip("-") in script
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c", script], check=True)


def test_info_says_what_is_installed_and_where_runs_are(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    found = json.loads(printed(capsys, "info", str(tmp_path / "runs"), "--json"))
    assert found["sonde"] == sonde.__version__
    assert found["packages"]["numpy"]
    assert set(found["extensions"]) == {"sonde.kernels._c", "sonde.capture._native"}
    assert found["runs"] == str(tmp_path / "runs")
    assert found["run_count"] == 0
    text = printed(capsys, "info", str(tmp_path / "nowhere"))
    assert "no such folder" in text


def test_info_reports_a_stale_extension_and_exits_with_one(monkeypatch, capsys):
    extension = pytest.importorskip("sonde.kernels._c")
    monkeypatch.setattr(extension, "SOURCES", "of yesterday")
    assert main(["info", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["extensions"]["sonde.kernels._c"] == "stale"
