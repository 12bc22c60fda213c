"""`engine-core report`: what it prints, where it writes, and what it refuses; what the README says of it."""

import copy
import importlib
import json
import os
import re
import subprocess
import sys
import webbrowser
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner

import engine_core_report
from engine_core.cli import main
from engine_core_report import diff, pictures

from .left_runs import MANIFEST, METRICS, write_run

README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(main, ["report", *arguments])


def test_the_page_of_one_run_lies_in_its_folder_and_its_path_is_printed():
    write_run("one")
    result = run("one")
    assert (result.exit_code, result.output) == (0, "one/report.html\n")
    assert Path("one/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert run("one").exit_code == 0  # its own page is overwritten


def test_the_page_of_several_lies_here_and_one_given_twice_is_one():
    write_run("one")
    write_run("two")
    assert run("one", "two").output == "report.html\n"
    assert run("one", "one/manifest.json").output == "one/report.html\n"


def test_out_says_where_and_force_overwrites():
    write_run("one")
    Path("page.html").write_text("mine")
    assert run("one", "--out", "page.html", "--force").output == "page.html\n"
    assert Path("page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not Path("one/report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "'none' does not exist"),
        (["empty"], "holds no manifest.json"),
        (["one", "newer"], "schema 2, this engine-core reads schema 1"),
        (["one", "--out", "mine.html"], "'mine.html' is there and is not a report: give another name, or --force"),
        (["one", "--out", "empty"], "'empty' is not a file: give the name of one"),
        (["one", "--out", ".", "--force"], "'.' is not a file: give the name of one"),
        (["one", "--out", "none/page.html"], "the report can't be written to 'none/page.html'"),
        ([], "Missing argument 'RUN...'"),
    ],
)
def test_what_cannot_be_is_refused_with_exit_code_2_and_nothing_is_written(arguments, message):
    write_run("one")
    write_run("newer", manifest={**MANIFEST, "schema": 2})
    Path("empty").mkdir()
    Path("mine.html").write_text("mine")
    before = sorted(Path().rglob("*"))
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert sorted(Path().rglob("*")) == before
    assert Path("mine.html").read_text() == "mine"


class Browser(webbrowser.BaseBrowser):
    def __init__(self, works):
        super().__init__("fake")
        self.works, self.shown = works, []

    def open(self, url, new=0, autoraise=True):
        self.shown.append(url)
        return self.works


@pytest.mark.parametrize("works", [True, False])
def test_open_shows_the_page_and_a_browser_that_cannot_start_is_no_failure(tmp_path, monkeypatch, works):
    browser = Browser(works)
    monkeypatch.setattr(webbrowser, "_tryorder", ["fake"])
    monkeypatch.setattr(webbrowser, "_browsers", {"fake": [None, browser]})
    write_run("one")
    result = run("one", "--open")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "one/report.html"
    assert ("no browser could be started" in result.output) is not works
    assert browser.shown == [(tmp_path / "one" / "report.html").as_uri()]


PROGRAM = """
import sys
sys.modules["torch"] = None
from engine_core.cli import main
for words in (["report", "one"], ["runs", "one", "--json"], ["diff", "one", "one"]):
    main(words, standalone_mode=False)
sys.exit("some_module" in sys.modules)
"""


def test_neither_torch_nor_a_plugin_is_needed(monkeypatch):
    write_run("one")
    info = Path("site/some_plugin-1.0.dist-info")
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[engine_core.algorithms]\na = some_module:A\n")
    Path("site/some_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.setenv("PYTHONPATH", str(Path("site").resolve()), prepend=os.pathsep)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("one/report.html\n[")


def test_a_run_that_is_being_written_can_be_reported_on_at_any_moment():
    folder = write_run("one", results=None)
    lines = (folder / "metrics.jsonl").read_bytes()
    for cut in range(0, len(lines), 101):
        (folder / "metrics.jsonl").write_bytes(lines[:cut])
        assert run("one").exit_code == 0
    (folder / "results.json").write_text('{"eval/loss": ')
    assert [CliRunner().invoke(main, [command, "one"]).exit_code for command in ("report", "runs")] == [0, 0]
    (folder / "manifest.json").write_text(json.dumps(MANIFEST)[:-5])
    assert run("one").exit_code == 2


def test_the_readmes_example_runs_and_its_first_table_has_all_commands(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    for name, loss in (("baseline", 0.5), ("changed", 0.75)):
        manifest = copy.deepcopy(MANIFEST) | {"run_name": name, "seed": int(loss * 4)}
        metrics = [*METRICS[:2], METRICS[2] | {"eval/loss": loss}]
        write_run(f"runs/{name}", manifest=manifest, metrics=metrics, results=None)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "setting\n  seed  2 -> 3\n"
    assert Path("both.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    registered = {entry.name for entry in entry_points(group="engine_core.commands") if "_report" in entry.value}
    assert set(re.findall(r"^\| `engine-core (\w+)` \|", README, flags=re.MULTILINE)) == registered


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("engine_core.report", "read_run", engine_core_report),
        ("engine_core.diff", "compare", diff),
        ("engine_core.explain", "to_svg", pictures),
    ],
)
def test_an_old_name_is_the_new_one_and_says_where_that_is(module, name, now):
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{name} has moved: import it from {now.__name__}"):
        assert getattr(importlib.import_module(module), name) is getattr(now, name)
