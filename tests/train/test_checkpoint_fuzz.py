"""Checkpoints that somebody has changed, and made the checksums right again: a CheckpointError is the worst of it."""

import hashlib
import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import resolve
from engine_core.errors import CheckpointError

from .test_resume import OPTIMIZERS, SCHEDULERS, run

HOSTILE: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, 10**400, 1e308, "", "os.system", "__import__('os').system('false')", "../../x",
    "\u0000", [], [[]], {}, {"$": "tensor", "name": "nowhere"}, {"$": "object"}, {"$": "tuple", "items": [1]},
    {"$": "number", "is": "nan"}, {"": 1},
]  # fmt: skip


def settings() -> dict[str, Any]:
    return {"optimizers": OPTIMIZERS["adamw"], "schedulers": (SCHEDULERS["cosine"], "1ba"), "seed": None}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    made, _ = run([CheckpointSaver(folder, "5ba")], **{**settings(), "seed": 4})
    with made:
        made.fit("5ba")
    return resolve(folder)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each place in a tree, as a container and its key."""
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [place for key, item in pairs for place in ((value, key), *places(item))]


def sign(folder: Path, manifest: dict[str, Any]) -> None:
    """Make the checksums right."""
    manifest.pop("checksum", None)
    files = manifest.get("files")
    for name in files if isinstance(files, dict) else ():
        if (folder / name).is_file() and isinstance(files[name], dict):
            data = (folder / name).read_bytes()
            files[name] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "checksum": checksum}))


def change_json(folder: Path, name: str, draw: random.Random) -> str:
    value = json.loads((folder / name).read_text())
    manifest = value if name == "manifest.json" else json.loads((folder / "manifest.json").read_text())
    container, key = draw.choice(places(value))
    what = f"{name} {key!r}"
    if isinstance(container, dict) and draw.random() < 0.2:
        del container[key]
    else:
        container[key] = draw.choice(HOSTILE)
        what += f" = {container[key]!r}"[:60]
    if name != "manifest.json":
        (folder / name).write_text(json.dumps(value))
    sign(folder, manifest)
    return what


def change_tensors(folder: Path, name: str, draw: random.Random) -> str:
    tensors = load_file(folder / name)
    key = draw.choice(sorted(tensors))
    other = [torch.zeros(0), torch.zeros(3, 3, 3), tensors[key].double(), tensors[key].to(torch.int64).abs() * 2**40]
    tensors[key] = draw.choice(other).contiguous()
    if draw.random() < 0.2:
        del tensors[key]
    save_file(tensors, folder / name)
    sign(folder, json.loads((folder / "manifest.json").read_text()))
    return f"{name} {key}"


CHANGES = [
    (change_json, "state.json"),
    (change_json, "state.json"),
    (change_json, "manifest.json"),
    (change_tensors, "state.safetensors"),
    (change_tensors, "model.safetensors"),
]


@pytest.mark.parametrize("seed", range(10))
def test_a_changed_checkpoint_loads_or_is_refused(seed: int, checkpoint: Path, tmp_path: Path) -> None:
    draw, refused = random.Random(seed), 0
    for number in range(25):
        folder = tmp_path / str(number)
        shutil.copytree(checkpoint, folder)
        change, name = draw.choice(CHANGES)
        what = change(folder, name, draw)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made, _ = run(load_path=folder, **settings())
            made.close()
        except CheckpointError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"mutation {number} of seed {seed}, {what}: {error!r}") from error
    assert refused > 3
