"""Reports: one file, within its size, that says what it lacks and trusts nothing in a run."""

import base64
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest
import served

import sonde
from sonde.cli import main

sys.path.insert(0, str(Path(__file__).parent.parent / "plot"))
from archived import answers_of, blocks_of, index_of


@pytest.fixture(scope="module")
def strange(folder):
    return sonde.open(folder / "strange")


@pytest.fixture(scope="module")
def text(strange, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    made = strange.to_html(path)
    assert made.size_bytes == path.stat().st_size
    return path.read_text()


def test_a_report_has_no_address_and_no_tag_of_a_run(text):
    outside = re.sub(r"(?s)<script type=.*?</script>", "", text)
    assert not re.search(r"(src|href)=\"(?!data:,)", outside)
    assert "http" not in re.sub('http-equiv="', "", outside)
    assert outside.count("<script") == 0
    tags = re.findall(r"<script[^>]*>", text)
    assert all(re.fullmatch(r'<script type="text/plain" data-sonde="\w+">', t) for t in tags[:-1])
    assert tags[-1] == '<script type="module">'
    assert text.count("</script>") == len(tags)


def test_the_policy_names_the_only_script_and_allows_no_request(text):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)[1]
    script = re.search(r'(?s)<script type="module">(.*)</script>', text)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"connect-src|http|\*|unsafe", policy)


def test_names_in_a_run_are_data(text, strange):
    for name in served.NAMES:
        for part in ("<img", "</script", "onerror"):
            if part in name:
                assert name not in text
    shown = {
        section["path"]
        for view, *_, a in answers_of(blocks_of(text))
        if view == "panel"
        for section in [a["spec"]]
    }
    assert len(shown) > 1


def test_the_name_of_a_run_is_escaped(tmp_path):
    run = served.make_run(tmp_path / "<b>&amp;\"'", ["a"])
    sonde.open(run).to_html(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "<b>" not in text
    assert "<title>&lt;b&gt;&amp;amp;&quot;&#x27; · Sonde</title>" in text


def test_a_limit_is_kept_and_what_is_left_out_is_said(folder, tmp_path):
    run = sonde.open(folder / "good")
    whole = run.to_html(tmp_path / "whole.html")
    limit = whole.size_bytes - 2_000
    less = run.to_html(tmp_path / "less.html", max_mb=limit / 1e6)
    assert (tmp_path / "less.html").stat().st_size <= limit
    assert any("size limit" in sentence for sentence in less.left_out)
    assert not any("size limit" in sentence for sentence in whole.left_out)
    about = index_of(blocks_of((tmp_path / "less.html").read_text()))["about"]
    assert about["left_out"] == list(less.left_out)
    with pytest.raises(sonde.SondeError, match=r"`max_mb=0\.1` is too small"):
        run.to_html(tmp_path / "none.html", max_mb=0.1)
    assert not (tmp_path / "none.html").exists()
    assert not list(tmp_path.glob("*.part"))


def test_only_the_tensors_asked_for_are_held(folder, tmp_path):
    run = sonde.open(folder / "good")
    made = run.to_html(tmp_path / "r.html", include="a")
    held = answers_of(blocks_of((tmp_path / "r.html").read_text()))
    sites = {a["spec"]["site"]["name"] for view, *_, a in held if view == "kymograph"}
    assert sites
    assert all(name.startswith(("a/", "a.")) for name in sites)
    assert any("not asked for" in sentence for sentence in made.left_out)


def test_the_command_writes_a_report_and_says_what_is_not_in_it(folder, tmp_path, capsys):
    target = tmp_path / "r.html"
    assert main(["export", str(folder / "good"), "--html", str(target)]) == 0
    said = capsys.readouterr().out
    assert str(target) in said
    assert "Left out:" in said
    assert "what only a server can answer" in said
    assert main(["export", str(folder / "good"), "--html", str(target)]) == 2
    assert "exists" in capsys.readouterr().err
    more = ["--force", "--json", "--max-mb", "5", "--kind", "output"]
    more += ["--compare-with", str(folder / "strange")]
    assert main(["export", str(folder / "good"), "--html", str(target), *more]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == target.stat().st_size
    held = {view for view, *_ in answers_of(blocks_of(target.read_text()))}
    assert {"table", "clock", "compare"} <= held
    itself = ["--force", "--compare-with", str(folder / "good")]
    assert main(["export", str(folder / "good"), "--html", str(target), *itself]) == 2
    assert "cannot be compared with itself" in capsys.readouterr().err
    assert told["left_out"]
    assert main(["export", str(folder / "good"), "--html", str(tmp_path / "r.pdf")]) == 2
    assert main(["export", str(folder / "good"), "--html", str(target), "--max-mb", "0"]) == 2


def test_the_path_of_the_folder_is_not_told(folder, text):
    held = answers_of(blocks_of(text))
    for view, *_, found in held:
        if view in {"runs", "server"}:
            assert str(folder) not in json.dumps(found)


def test_the_document_about_reports_is_true(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    served.make_run(tmp_path / "runs" / "before", ["blocks.0", "head"])
    served.make_run(tmp_path / "runs" / "first", ["blocks.0", "head"])
    document = Path(__file__).parents[2] / "docs" / "reports.md"
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    assert len(blocks) == 3
    exec("\n".join(blocks), {})
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
