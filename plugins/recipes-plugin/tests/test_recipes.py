"""Each recipe trains a net of its kind, and its run needs no recipe to be made again; what `recipes` prints."""

import json
import sys
import textwrap

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import load_file

from engine_core.cli import main
from engine_core.registry import Registry
from recipes_plugin.evidence import read_studied

RECORDS = [each for each in Registry.scan().records_of("recipes") if each.distribution == "recipes-plugin"]
MODULE = """
    import torch
    from torch import nn

    def conv_net():
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.mix = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x):
            return x + self.mix(self.norm1(x))

    class ByteNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
            self.blocks = nn.Sequential(Block(), Block())

        def forward(self, tokens):
            return self.head(self.blocks(self.embed(tokens)))

    def sentences(batches=4):
        return [(torch.randint(16, (2, 64)), torch.randint(16, (2, 64))) for _ in range(batches)]

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs.transpose(1, 2), targets)

    def images(batches=4):
        return [(torch.randn(8, 1, 8, 8), torch.randint(3, (8,))) for _ in range(batches)]
"""
NETS = {
    "image_classification": ("conv_net", "images", "torch.nn.functional:cross_entropy"),
    "finetune": ("conv_net", "images", "torch.nn.functional:cross_entropy"),
    "language_model": ("ByteNet", "sentences", "parts_of_recipes:loss"),
}
FOUND = {
    "task": "digits",
    "model": "a small net",
    "reached": "98 %",
    "baseline": "SGD",
    "tuned": "3 rates",
    "cost": "row passes",
    "gain": 2,
    "interval": [1.8, 2.25],
    "seeds": 5,
    "without": {"optimizer": "loses 0.01 (0.005 to 0.015)"},
    "study": "engine-core study images.yaml",
}
RECIPE = {
    "kind": "image_classification",
    "summary": "Faster.",
    "optimizer": {"target": "torch.optim:Adam"},
    "because": {"optimizer": "It adapts."},
    "evidence": [FOUND],
    "not_tried": ["Large images."],
}


def run(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_recipe_trains_a_net_of_its_kind_and_the_config_of_its_run_makes_it_again(record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts_of_recipes.py").write_text(textwrap.dedent(MODULE))
    net, batches, loss = NETS[read_studied(record).kind]
    config = {
        "model": {"target": f"parts_of_recipes:{net}"},
        "data": {"target": f"parts_of_recipes:{batches}"},
        "loss": {"target": loss},
        "trainer": {"max_duration": "2ep", "seed": 3},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    done = run("train", "run.yaml", "--recipe", record.name, "--out", "first")
    assert done.exit_code == 0, done.output
    assert f"recipe {record.name} ({record.origin}) adds\n" in done.output
    merged = json.loads((tmp_path / "first" / "manifest.json").read_text())["config"]
    (tmp_path / "again.yaml").write_text(json.dumps(merged))
    assert run("train", "again.yaml", "--out", "second").exit_code == 0
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Return `acme(**changes)`, which installs the recipe `fast` so changed."""
    site = tmp_path / "site"
    info = site / "acme-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[engine_core.recipes]\nfast = acme_of_recipes:FAST\n")
    file = site / "fast.yaml"
    (site / "acme_of_recipes.py").write_text(f"from pathlib import Path\nFAST = Path({str(file)!r})")
    monkeypatch.delitem(sys.modules, "acme_of_recipes", raising=False)
    monkeypatch.syspath_prepend(site)
    Registry.scan(refresh=True)
    yield lambda **changes: file.write_text(yaml.safe_dump({**RECIPE, **changes}, sort_keys=False))
    monkeypatch.undo()
    Registry.scan(refresh=True)


def test_show_prints_what_it_adds_why_what_studies_found_and_where_it_was_not_tried(acme):
    acme()
    assert run("recipes", "show", "fast").output.splitlines() == [
        "fast (acme 1.2), for image_classification: Faster.",
        "adds",
        "  optimizer: {target: 'torch.optim:Adam'}",
        "      It adapts.",
        "evidence",
        "  task               digits",
        "  model              a small net",
        "  reached            98 %",
        "  baseline           SGD",
        "  tuned              3 rates",
        "  gain               2x fewer row passes (1.8x to 2.25x), with 5 seeds",
        "  without optimizer  loses 0.01 (0.005 to 0.015)",
        "  study              engine-core study images.yaml",
        "not tried",
        "  Large images.",
    ]
    (row,) = [line for line in run("recipes", "list").output.splitlines() if line.startswith("fast ")]
    assert row.split("  ")[-1].strip() == "2x fewer row passes (1.8x to 2.25x): digits"
    acme(evidence=[])
    assert "evidence\n  not measured yet\n" in run("recipes", "show", "fast").output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"interval": [2.1, 3]}, "fast.yaml:8: evidence[0]: the gain 2 is not in its interval [2.1, 3]"),
        ({"seeds": "five"}, "fast.yaml:18: evidence[0].seeds: has to be a valid integer, not 'five'"),
        (
            {"without": {"optimiser": ""}},
            "fast.yaml: without: 'optimiser' is not a part of it; did you mean 'optimizer'?",
        ),
    ],
)
def test_evidence_that_can_not_be_is_reported_with_its_line_and_the_list_goes_on(acme, change, said):
    acme(evidence=[{**FOUND, **change}])
    shown = run("recipes", "show", "fast")
    assert (shown.exit_code, said in shown.output) == (2, True), shown.output
    listed = run("recipes", "list")
    assert (listed.exit_code, said in listed.output, RECORDS[0].name in listed.output) == (0, True, True)
