"""The drop-ins under the names of the originals: `sonde.compat.install` and `python -m`."""

import ast
import importlib
import io
import subprocess
import sys
import tokenize
from pathlib import Path
from types import ModuleType

import pytest

import sonde
from sonde import compat


def imported(name):
    return importlib.import_module(name)


def test_a_package_and_its_modules_are_the_drop_in_itself(installed):
    ours = imported("sonde.compat.torch_module_monitor.monitor")
    assert imported("torch_module_monitor.monitor") is ours
    assert imported("torch_module_monitor").ModuleMonitor is ours.ModuleMonitor
    assert ours.__spec__.name == "sonde.compat.torch_module_monitor.monitor"


@pytest.mark.parametrize("name", ["torch_module_monitor.nothing", "torch_module_monitor.a.b"])
def test_a_module_that_the_drop_in_lacks_is_not_found(installed, name):
    with pytest.raises(ModuleNotFoundError, match="torch_module_monitor"):
        imported(name)


def test_the_first_import_says_so_and_later_ones_do_not(installed, capsys):
    imported("torch_module_monitor")
    said = capsys.readouterr().err
    assert "`sonde.compat.torch_module_monitor`" in said
    assert said.count("\n") == 1
    imported("torch_module_monitor.storage")
    assert capsys.readouterr().err == ""


def test_installing_twice_is_installing_once(installed):
    compat.install()
    assert sum(isinstance(f, compat.DropInFinder) for f in sys.meta_path) == 1


def test_after_uninstalling_the_originals_are_found_again(installed):
    imported("torch_module_monitor")
    compat.uninstall()
    assert "torch_module_monitor" not in sys.modules
    assert not any(isinstance(f, compat.DropInFinder) for f in sys.meta_path)


def test_an_original_that_was_imported_before_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchexplorer", ModuleType("torchexplorer"))
    with pytest.raises(sonde.SondeError, match="has been imported already"):
        compat.install()
    with pytest.raises(sonde.SondeError, match="`tensorboard` has no drop-in"):
        compat.install("tensorboard")


SCRIPT = """
import sys
from multiprocessing import get_context
from pathlib import Path

import torch_module_monitor


def answer(queue):
    import torch_module_monitor

    queue.put((torch_module_monitor.__name__, __name__))


if __name__ == "__main__":
    context = get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=answer, args=(queue,))
    process.start()
    print(queue.get(), sys.argv[1:], Path(__file__).name, Path(sys.path[0]).name)
    process.join()
    sys.exit(3)
"""


def run(*arguments, **options):
    command = [sys.executable, "-m", "sonde.compat", *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, **options
    )


def test_a_script_runs_with_nothing_edited_and_so_do_processes_that_it_spawns(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    ended = run("program/train.py", "--lr", "0.1", cwd=tmp_path)
    assert ended.returncode == 3, ended.stderr
    found = "('sonde.compat.torch_module_monitor', '__mp_main__')"
    assert ended.stdout.strip() == f"{found} ['--lr', '0.1'] train.py program"
    assert "sonde.compat.torch_module_monitor" in ended.stderr


def test_a_module_runs_as_well(tmp_path):
    (tmp_path / "train.py").write_text("import torch_module_monitor as m\nprint(m.__name__)")
    ended = run("-m", "train", cwd=tmp_path)
    assert ended.stdout.strip() == "sonde.compat.torch_module_monitor", ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["nothing.py"], 2, "There is no file"), ([], 2, "usage"), (["--help"], 0, "usage")],
)
def test_a_wrong_call_says_how(arguments, code, said, tmp_path):
    ended = run(*arguments, cwd=tmp_path)
    assert ended.returncode == code
    assert said in ended.stdout + ended.stderr


def code_lines(path):
    """The lines of a file that hold code: no blanks, comments and docstrings."""
    source = path.read_text()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    firsts = [n.body[0] for n in ast.walk(ast.parse(source)) if isinstance(n, kinds) and n.body]
    texts = [n for n in firsts if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    prose = {line for n in texts for line in range(n.lineno, n.end_lineno + 1)}
    blank = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {token.start[0] for token in tokens if token.type not in (*blank, tokenize.ENDMARKER)}
    return len(code - prose)


def test_all_drop_ins_together_are_small():
    files = Path(compat.__file__).parent.rglob("*.py")
    assert sum(map(code_lines, files)) <= 2_200
