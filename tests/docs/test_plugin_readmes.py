"""The README of each plugin: its examples run, and its tables of arguments and its tree are what the code has."""

import ast
import codecs
import importlib
import inspect
import locale
import re

import pytest
import torch
import yaml

from engine_core.needs import WRITABLE
from engine_core.registry import Registry

from .conftest import ROOT

# Of those whose own tests are beside them; tests/beside has what needs another library.
TEXTS = {
    page.parent.name: page.read_text(encoding="utf-8")
    for page in sorted(ROOT.glob("plugins/*/README.md"))
    if (page.parent / "tests").exists()
}
IN_ASCII = codecs.lookup(locale.getpreferredencoding(do_setlocale=False)).name == "ascii"
COMPILES = pytest.mark.skipif(IN_ASCII, reason="the compiler reads torch's own UTF-8 files in the locale's encoding")
EXAMPLES = [
    pytest.param(example, id=f"{name} {number}", marks=[COMPILES] if "compile" in example else [])
    for name, text in TEXTS.items()
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    if name != "engine-core-report"  # it needs runs, which its own tests write
]
DESCRIBED = [
    pytest.param(
        TEXTS[record.distribution], Registry.scan().load(record.kind, record.name), record.name, id=record.name
    )
    for record in Registry.scan().records
    if record.kind in ("algorithms", "callbacks") and record.distribution in TEXTS
]
IN_WORDS = {"all that an algorithm may write": WRITABLE, "required": inspect.Parameter.empty}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_and_prints_what_it_says(example, capsys):
    torch.manual_seed(0)
    exec(compile(example, "README.md", "exec"), {"__name__": "page"})
    if said := re.findall(r"print\(.*\)  # (.*)", example):
        assert capsys.readouterr().out.splitlines() == said


@pytest.mark.parametrize(("text", "kind", "name"), DESCRIBED)
def test_a_section_says_its_name_and_gives_every_argument_and_default_and_an_example(text, kind, name):
    section = text.partition(f"\n## {kind.__name__}\n")[2].partition("\n## ")[0] or text
    assert name == "selective_backprop" or f"Registered as `{name}`." in section
    table = section.partition("| argument |")[2].partition("\n\n")[0]
    defaults = {}
    for arguments, told in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", table, flags=re.MULTILINE):
        names, value = (
            re.findall(r"\w+", arguments),
            IN_WORDS[told] if told in IN_WORDS else ast.literal_eval(told.strip("`")),
        )
        defaults |= zip(names, value if len(names) > 1 else [value], strict=True)
    assert defaults == {argument: each.default for argument, each in inspect.signature(kind).parameters.items()}
    assert section.count("```python") >= (2 if hasattr(kind, "match") else 1)


@pytest.mark.parametrize("text", [text for text in TEXTS.values() if "```yaml" in text])
def test_a_config_names_what_is_registered_and_arguments_that_it_takes(text):
    listed = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)[0])
    for kind in {"algorithms", "callbacks"} & {*listed}:
        for entry in listed[kind]:
            given = entry if isinstance(entry, dict) else {"name": entry}
            Registry.scan().load(kind, given["name"])(**given.get("args", {}))


@pytest.mark.parametrize("name", TEXTS)
def test_the_tree_lists_every_file_and_folder(name):
    package = importlib.import_module(name.replace("-", "_"))
    (folder,) = map(type(ROOT), package.__path__)
    tree = TEXTS[name].partition("\n## The files\n")[2].partition("```\n\n")[0]
    there = {path.name for path in folder.iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
    assert sorted(re.findall(r"^  ([\w.]+)/? ", tree, flags=re.MULTILINE)) == sorted(there)
    inner = re.findall(r"^    ([\w.]+) ", tree, flags=re.MULTILINE)
    assert inner == [] or sorted(inner) == sorted({path.name for path in folder.glob("*/*.py")} - {"__init__.py"})
