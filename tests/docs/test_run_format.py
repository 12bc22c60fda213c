"""The page on the files of a run names each key that runs write, with its type, and no other."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.manifest import SCHEMA, Manifest

from .conftest import DOCS, ROOT

pytestmark = pytest.mark.filterwarnings("always")
TEXT = (DOCS / "reference" / "run-format.md").read_text(encoding="utf-8")
TYPES = {
    "text": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "list": list,
    "object": dict,
    "null": type(None),
}
ELSEWHERE = {"machine.threads", "machine.instructions", "parameters", "ranks"}
"""What is there or of another type on other machines, and for several processes."""

OWN = """
from torch.nn import functional as F
from engine_core import Algorithm, AlgorithmMetadata, Callback

class Late(Algorithm):
    metadata = AlgorithmMetadata(name="late", events=("batch_end",), after=("ema", "not_there"))

    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        pass

class Once(Late):
    metadata = AlgorithmMetadata(name="once", events=("batch_end",))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        self.finish()

class Pause(Callback):
    def batch_end(self, state, logger):
        if state.timestamp.batch == 8:
            state.pause_training()

class Zero:
    higher_is_better = True

    def update(self, outputs, targets):
        pass

    def compute(self):
        return 0.0

    reset = compute

def coupled(outputs, targets):
    return F.cross_entropy(outputs.mean(0), targets[0])
"""
"""An algorithm that never runs, which is warned of, and others that bring what few runs have."""


def tables(title, text=TEXT):
    """Return the type of each key in the first table under a heading."""
    section = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)[1]
    rows = re.findall(r"^\| (`.+?`) \| ([^|]+?) \| .+\|$", section, re.MULTILINE)
    return {key: kind for keys, kind in rows for key in re.findall(r"`([^`]+)`", keys)}


COMMON = tables("metrics.jsonl")
TITLES = re.findall(r"^### (.+)$", TEXT, re.MULTILINE)
KEYS = {
    title: {**{key: kind for key, kind in COMMON.items() if (title, key) != ("values", "epoch")}, **tables(title)}
    for title in TITLES
}
TIMING = {f"timing.{key}": kind for key, kind in tables("timing").items()}
FILES = {"manifest.json": tables("manifest.json"), "results.json": {**tables("results.json"), **TIMING}}


def told_in(content, types, seen, path=""):
    """Add the keys of the page that a content has; fail for one that is not there, or of another type."""
    if path:
        kind = types[path]
        seen.add(path)
        if kind.endswith("free") or kind == "any":
            return
        allowed = [TYPES[each] for each in kind.split(" or ")]
        assert type(content) in [*allowed, *([int] if float in allowed else [])], f"{path}: {content!r} is not {kind}"
    if isinstance(content, dict):
        for name, inner in content.items():
            told_in(inner, types, seen, key_for(name, types, path))
    elif isinstance(content, list) and any(key.startswith(f"{path}[].") for key in types):
        for entry in content:
            for name, inner in entry.items():
                told_in(inner, types, seen, key_for(name, types, f"{path}[]"))


def key_for(name, types, path):
    """Return how the page writes a key: by its name, or as `<anything>`."""
    before = f"{path}." if path else ""
    if f"{before}{name}" in types:
        return f"{before}{name}"
    free = [key for key in types if re.fullmatch(rf"{re.escape(before)}<[^.]+>", key)]
    assert free, f"{before}{name} is not on the page"
    return free[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Train: to the end; with a crash and resumed; until it pauses."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("run.yaml", "old_net.py"):
            shutil.copy(ROOT / "tests" / "old_run" / name, place)
        patch.chdir(place)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr("engine_core.run.folder.PROGRESS_EVERY", 5)
        changes = [
            "loss={target: 'own:coupled'}",
            "metrics={zero: {target: 'own:Zero'}}",
            "trainer.grad_clip_norm=1.0",
            "eval_data.args.batches=2",
        ]
        changes += ["algorithms+={target: 'own:Late'}", "algorithms+={target: 'own:Once'}"]
        Path("own.py").write_text(OWN)
        train("finished", "--timing", *(word for change in changes for word in ("--set", change)))
        patch.setenv("CRASH", "1")
        train("failed", "--timing", code=1)
        patch.delenv("CRASH")
        shutil.copytree("failed", "resumed")
        train("resumed")
        named = "optimizer={by_name: {'*': {target: 'torch.optim:SGD', args: {lr: 0.1}}}}"
        train("paused", "--timing", "--set", "callbacks+={target: 'own:Pause'}", "--set", named, code=75)
    for name in ("old_net", "own"):
        sys.modules.pop(name)
    return [place / name for name in ("finished", "failed", "resumed", "paused")]


def train(folder, *options, code=0):
    done = CliRunner().invoke(main, ["train", "run.yaml", "--quiet", "--out", folder, *options])
    assert done.exit_code == code, done.output


@pytest.mark.parametrize("file", FILES)
def test_a_file_has_the_keys_that_the_page_names(file, folders):
    seen = set()
    for folder in folders:
        if (folder / file).exists():
            told_in(json.loads((folder / file).read_text()), FILES[file], seen)
    assert {key for key in FILES[file] if key not in seen and not below(key, ELSEWHERE)} == set()


def test_a_line_of_each_kind_has_the_keys_that_the_page_names(folders):
    seen = {title: set() for title in TITLES}
    for folder in folders:
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            told = json.loads(line)
            (title,) = [title for title in TITLES if told["kind"] in title.split(", ")]
            told_in(told, KEYS[title], seen[title])
    left = {t: {key for key in KEYS[t] if key not in seen[t] and not below(key, ELSEWHERE)} for t in TITLES}
    assert {title: keys for title, keys in left.items() if keys} == {}


def test_each_kind_of_line_has_been_written_by_one_of_the_runs(folders):
    texts = [(folder / "metrics.jsonl").read_text() for folder in folders]
    written = {json.loads(line)["kind"] for text in texts for line in text.splitlines()}
    assert written == {kind for title in TITLES for kind in title.split(", ")}


def below(key, others):
    return any(key == other or key.startswith(f"{other}.") for other in others)


def test_the_page_says_which_keys_of_a_manifest_a_reader_needs_and_the_schema_numbers():
    needed = re.search(r"Readers need (.*?);", TEXT, re.DOTALL)[1]
    fields = {field.alias or name for name, field in Manifest.model_fields.items() if field.is_required()}
    assert set(re.findall(r"`(\w+)`", needed)) == fields
    assert re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE) == [str(number) for number in range(1, SCHEMA + 1)]
