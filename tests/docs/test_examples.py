"""Every example in README, docs and docstrings runs, with nothing but what the reader sees on the page."""

import doctest
import importlib
import pkgutil
import warnings
from pathlib import Path

import pytest

import engine_core

from .conftest import DOCS, PAGES, blocks_of, name_of

OF_OTHER_TRAINERS = [page for page in PAGES if "../examples/beside/" in page.read_text(encoding="utf-8")]
"""What needs a library that is not here: tests/beside runs it."""
WITH_PYTHON = [
    page
    for page in PAGES
    if page not in OF_OTHER_TRAINERS and any(block.language == "python" for block in blocks_of(page))
]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    with warnings.catch_warnings():
        for block in blocks_of(page):
            if block.language == "python" and "caption" not in block.options:
                run(block, page, names)


def run(block, page, names):
    """Run a block in the page's namespace; one with prompts has to print what it shows."""
    if not block.text.startswith(">>>"):
        exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), names)
        return
    example = doctest.DocTestParser().get_doctest(block.text, {}, page.name, str(page), block.line - 1)
    example.globs = names
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append, clear_globs=False)
    if failed:
        pytest.fail("".join(said), pytrace=False)


@pytest.mark.parametrize("program", sorted((DOCS / "examples").glob("*.py")), ids=name_of)
def test_a_program_in_the_docs_runs(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program.read_text(encoding="utf-8"), program, "exec"), {"__name__": "__main__"})


def test_an_example_that_shows_something_else_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\n>>> x + 1\n3\n```\n")
    first, second = blocks_of(page)
    names = {}
    run(first, page, names)
    with pytest.raises(pytest.fail.Exception, match=r"line 6, in page.md(.|\n)*Got:\n    2"):
        run(second, page, names)


TESTED_ALONE = Path(__file__).parents[2].glob("plugins/*/tests")  # those of the others need another library
PACKAGES = [
    engine_core,
    *(importlib.import_module(tests.parent.name.replace("-", "_")) for tests in sorted(TESTED_ALONE)),
]
MODULES = sorted(
    module.name
    for package in PACKAGES
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")
)


def test_the_examples_of_each_module_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    finder = doctest.DocTestFinder(exclude_empty=True)
    for test in [test for name in MODULES for test in finder.find(importlib.import_module(name))]:
        if test.examples:
            runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
    assert runner.tries > 20
