"""Checkpoints that were changed, with checksums made right again: each one is refused, or loads and trains on.

Whatever they contain, none of it is run: an audit hook of the interpreter watches.
"""

import ctypes
import hashlib
import importlib
import io
import json
import os
import pickle
import random
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, resolve
from engine_core.errors import EngineError

from . import shards
from .parts import batches, net, rows, trainer
from .test_checkpoint_schemas import SAVED
from .test_resume import OPTIMIZERS, SCHEDULERS, Counts, Noise, loader

MUTATIONS = {"quick": 40, "full": 100}
TOO_LARGE = "1e400"
"""Stands for the number, which a float of Python's can't be written as."""
CODE = "__import__('sys').audit('trap.sprung')"
HOSTILE = [
    None, True, 0, -1, 0.5, 2**31, 2**63, 10**400, 1e308, TOO_LARGE, "", "../../x", "/etc/passwd", "\u0000", [], [[]],
    {}, {"": 1}, [True, True], {"$": "tensor", "name": "nowhere"}, {"$": "object"}, {"$": "tuple", "items": [1]},
    {"$": "number", "is": "nan"}, {"$": "dict", "items": [[[1], 2]]},
    CODE, f"lambda *_: {CODE}", f"{{{CODE}!r}}", "trapped", "trapped:Trap", "trapped.Trap", "os.system", "torch.load",
    "!!python/object/apply:os.system ['false']", {"target": "trapped:Trap", "args": {}}, {"_target_": "trapped.Trap"},
    {"$": "trapped.Trap"}, {"$": "object", "type": "trapped.Trap", "state": {}}, {"$": "pickle", "data": "gASVAAA="},
    {"__reduce__": ["os.system", ["false"]]}, {"__class__": "trapped.Trap"}, {"py/object": "trapped.Trap"},
]  # fmt: skip
RUNS_CODE = {
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile"),
    *("subprocess.Popen", "pickle.find_class", "ctypes.dlopen", "ctypes.dlsym", "socket.connect", "trap.sprung"),
}
DRIVER = "libnvidia-ml.so.1"
"""What torch opens on its own, where it was built with CUDA, when an optimizer looks for devices."""


class Trap:
    def __reduce__(self):
        return eval, (CODE,)


class CheckedNoise(Noise):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "count": int(state["count"])})


class CheckedCounts(Counts):
    def load_state_dict(self, state):
        self.batches = int(state["batches"])


class Watch:
    """Records and prevents what runs a checkpoint's code, or writes outside of a folder."""

    def __init__(self):
        self.folder = None
        self.seen = []

    def __call__(self, event, args):
        if self.folder is not None and self._is_forbidden(event, args):
            self.seen.append(f"{event} {args!r:.200}")
            raise PermissionError(f"{event} at the word of a checkpoint")

    def _is_forbidden(self, event, args):
        if event == "open" and isinstance(args[0], (str, bytes)):
            writes = args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            return bool(writes) and not Path(os.fsdecode(args[0])).resolve().is_relative_to(str(self.folder))
        if event == "import":
            return any(args[0] == text for text in HOSTILE)
        if event in ("ctypes.dlopen", "ctypes.dlsym") and DRIVER in (args[0], getattr(args[0], "_name", None)):
            return False
        return event in RUNS_CODE or (event == "compile" and str(args[1]).startswith(("<", "b'<")))

    @contextmanager
    def over(self, folder):
        self.folder, self.seen = folder.resolve(), []
        try:
            yield self.seen
        finally:
            self.folder = None


@pytest.fixture(scope="session")
def watch():
    made = Watch()
    sys.addaudithook(made)  # for good: the interpreter lets none go
    return made


@pytest.fixture(autouse=True)
def trapped(tmp_path_factory, monkeypatch):
    """Let there be a module whose import is noticed."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "trapped.py").write_text(f"{CODE}\nTrap = dict\n")
    monkeypatch.syspath_prepend(folder)


def plain(callbacks=(), **settings):
    return trainer(batches(8, 8, 8), max_duration="9ep", callbacks=callbacks, **settings)


def whole(callbacks=(), **settings):
    """Return a run with an optimizer, a scheduler, an algorithm and a callback that all have a state."""
    given = {"optimizers": OPTIMIZERS["adamw"], "schedulers": (SCHEDULERS["cosine"], "1ba")}
    given |= {"max_duration": "3ep", "eval_dataloader": [rows(9)]}
    given |= {"algorithms": CheckedNoise(), "callbacks": [CheckedCounts(), *callbacks]}
    return trainer(loader(), net(0.3), **given, **settings)


def former(**settings):
    """Return a run that resumes what a former version saved, without its average."""
    noise, counts = type("Noise", (CheckedNoise,), {})(), type("Counts", (CheckedCounts,), {})()
    given = {"optimizers": OPTIMIZERS["adamw"], "schedulers": (SCHEDULERS["cosine"], "1ba")}
    given |= {"algorithms": noise, "callbacks": counts, "eval_dataloader": [rows(9)], "load_strict": False}
    return trainer(loader(), net(0.3), **{"max_duration": "3ep", **given, **settings})


RUNS = {"plain": plain, "whole": whole, "sharded": plain, "schema-1": former, "schema-2": former}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Return the files of a checkpoint in mid-epoch, for each kind of run, of a run that has been resumed once."""
    saved = {}
    for kind, make in RUNS.items():
        if kind.startswith("schema"):
            saved[kind] = files_in(SAVED / kind)
            continue
        folder = tmp_path_factory.mktemp(kind)
        with make([CheckpointSaver(folder, "5ba")], seed=4) as made:
            made.fit("5ba")
        with make(load_path=folder) as made:
            made.fit("2ba")
        checkpoint = resolve(folder)
        if kind == "sharded":
            content, checkpoint = read_content(checkpoint), folder / "sharded"
            shards.write(checkpoint, content, 2)
        saved[kind] = files_in(checkpoint)
    return saved


def files_in(folder):
    """Return the content of each file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def places(value):
    """Return each place in a tree, as a container and its key."""
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [place for key, item in pairs for place in ((value, key), *places(item))]


def text_of(value):
    return json.dumps(value).replace(f'"{TOO_LARGE}"', TOO_LARGE)


def sign(folder, manifest):
    """Make the checksums right."""
    manifest.pop("checksum", None)
    files = manifest.get("files")
    for name in files if isinstance(files, dict) else ():
        if (folder / name).is_file() and isinstance(files[name], dict):
            data = (folder / name).read_bytes()
            files[name] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    checksum = hashlib.sha256(json.dumps(json.loads(text_of(manifest)), sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(text_of({**manifest, "checksum": checksum}))


def change_json(files, name, draw):
    value = json.loads(files[name])
    container, key = draw.choice(places(value))
    what, lot = f"{name} {key!r} of {container!r:.300}", draw.random()
    if isinstance(container, dict) and lot < 0.15:
        del container[key]
        what += " removed"
    elif isinstance(container, dict) and lot < 0.25:
        renamed = draw.choice([hostile for hostile in HOSTILE if isinstance(hostile, str)])
        container[renamed] = container.pop(key)
        what += f" renamed {renamed!r}"
    else:
        container[key] = draw.choice(HOSTILE)
        what += f" = {container[key]!r:.60}"
    files[name] = text_of(value).encode()
    return what


def change_tensors(files, name, draw):
    tensors = load(files[name])
    key = draw.choice(sorted(tensors))
    own = tensors.pop(key)
    others = [
        *(torch.zeros(0), torch.zeros(3, 3, 3), torch.tensor(-1.0), own.reshape(-1)[:1], own[None]),
        *(own.double(), own.bool(), own.to(torch.bfloat16), own.double() * torch.nan, own.long().abs() * 2**40),
    ]
    if draw.random() < 0.85:
        tensors[key] = draw.choice(others).contiguous()
    length = int.from_bytes(files[name][:8], "little")
    files[name] = save(tensors, json.loads(files[name][8 : 8 + length]).get("__metadata__"))
    return f"{name} {key} {tensors.get(key)!r:.100}"


def change_bytes(files, name, draw):
    torch_file = io.BytesIO()
    torch.save(Trap(), torch_file)
    at = draw.randrange(min(400, len(files[name])))
    one = files[name][:at] + bytes([draw.randrange(256)]) + files[name][at + 1 :]
    files[name] = draw.choice([one, one, one, pickle.dumps(Trap()), torch_file.getvalue(), CODE.encode(), b"[" * 10**5])
    return f"{name} bytes {files[name][max(0, at - 20) : at + 20]!r}"


CHANGES = [
    *((change_json, "state.json") for _ in range(6)),
    *((change_json, "manifest.json") for _ in range(2)),
    *((change_tensors, "state.safetensors") for _ in range(3)),
    *((change_tensors, "model.safetensors"), (change_bytes, "model.safetensors")),
    *((change_bytes, "state.json"), (change_bytes, "state.safetensors"), (change_bytes, "manifest.json")),
]


def write(folder, files):
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    try:
        sign(folder, json.loads(files["manifest.json"]))
    except (ValueError, AttributeError, RecursionError):  # as it is: none that could be signed
        (folder / "manifest.json").write_bytes(files["manifest.json"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 5))])
@pytest.mark.parametrize("kind", RUNS)
def test_a_changed_checkpoint_trains_on_or_is_refused_and_runs_nothing(kind, seed, checkpoints, watch, tmp_path):
    draw, refused, mutations = random.Random(seed), 0, MUTATIONS["full" if seed else "quick"]
    for number in range(mutations):
        files, folder = dict(checkpoints[kind]), tmp_path / str(number)
        change, name = draw.choice(CHANGES)
        stem, _, suffix = name.partition(".")
        name = draw.choice(sorted(file for file in files if file.startswith(stem) and file.endswith(suffix)))
        what = f"mutation {number} of seed {seed}, {change(files, name, draw)}"
        write(folder, files)
        with watch.over(tmp_path) as seen:
            try:
                with RUNS[kind](load_path=folder) as made:
                    made.fit("2ba")
            except EngineError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
        assert seen == [], what
    assert mutations / 2 < refused < mutations * 0.95


RUNNING = {
    "eval": lambda: eval("1 + 1"),
    "exec": lambda: exec("x = 1"),
    "os.system": lambda: os.system("true"),
    "subprocess": lambda: subprocess.run(["true"], check=True),
    "pickle": lambda: pickle.loads(pickle.dumps(Trap())),
    "import": lambda: __import__("trapped"),
    "importlib": lambda: importlib.import_module("trapped"),
    "ctypes": lambda: ctypes.CDLL(None).getpid(),
    "open": lambda: Path("/nowhere/written").write_text("x"),
}


def test_the_watch_notices_and_prevents(watch, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else the first import writes, too
    for name, run in RUNNING.items():
        with pytest.raises(PermissionError), watch.over(tmp_path) as seen:
            run()
        assert len(seen) == 1, name
