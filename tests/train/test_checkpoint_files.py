"""A checkpoint's folder: complete or not there, and read only if every bit is as it was written."""

import errno
import json
import random
import struct

import pytest
import torch

from engine_core.checkpoint import Checkpoint, read_content, read_manifest, write_content
from engine_core.errors import CheckpointError

from . import shards
from .parts import same
from .test_checkpoint_fuzz import sign

FILES = ["manifest.json", "model.safetensors", "state.json", "state.safetensors"]
MODEL = dict(sorted(shards.MODEL.items()))
CONTENT = Checkpoint(MODEL, {"clock": {"batch": 3}}, {"momentum": torch.randn(3, 4)}, {"seed": 7})
SHARDS = [f"{name}-of-00002.safetensors" for name in ("average/model-00002", "model-00001", "state-00002")]


@pytest.fixture
def folder(tmp_path, request):
    """Return a checkpoint, a sharded one for a file of one."""
    path = tmp_path / "ep0-ba3"
    if "name" in request.fixturenames and request.getfixturevalue("name") in SHARDS:
        shards.write(path, size=2)
    else:
        write_content(path, CONTENT)
    return path


def test_what_was_written_is_read_and_takes_the_place_of_another_of_its_name(folder):
    content = read_content(folder)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert same(dict(sorted(content.model.items())), MODEL) and same(content.tensors, CONTENT.tensors)
    assert content.state == CONTENT.state
    assert content.manifest["seed"] == read_manifest(folder)["seed"] == 7
    write_content(folder, Checkpoint(MODEL, {"clock": {"batch": 4}}, {}))
    assert read_content(folder).state == {"clock": {"batch": 4}}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", [*FILES, *SHARDS])
def test_a_flipped_bit_a_lost_end_a_missing_file_and_a_link_are_found_and_the_file_named(folder, name, tmp_path):
    path, draw = folder / name, random.Random(1)
    whole = path.read_bytes()

    def found(why=""):
        with pytest.raises(CheckpointError, match=name + why):
            read_content(folder)

    for _ in range(15):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        found()
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        found()
    path.write_bytes(whole)
    read_content(folder)
    path.rename(tmp_path / "elsewhere")
    found("' (is missing|can't be read: No such file)")
    path.symlink_to(tmp_path / "elsewhere")
    found("' can't be read: .* is a link")


def forge(folder, **changes):
    """Write a manifest whose checksum is right, as an attacker would."""
    sign(folder, {**json.loads((folder / "manifest.json").read_text()), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 4}, "has schema 4, and this version .* reads schemas 1 to 3: install"),
        ({"schema": 0}, "has schema 0"),
        ({"schema": True}, "lacks schema or checksum"),
        ({"files": {}}, "does not list the files"),
        ({"files": {"../state.json": {}, "model.safetensors": {}, "state.safetensors": {}}}, "does not list the files"),
        ({"files": {"state.json": 3, "model.safetensors": {}, "state.safetensors": {}}}, "size differs"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(folder, changes, message):
    forge(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_content(folder)


HOSTILE_JSON = {
    "a pickle": b"\x80\x04\x95cos\nsystem\n",
    "no object": b"[1, 2]",
    "nested without end": b"[" * 100_000,
    "a number of ten thousand digits": b'{"clock": ' + b"9" * 10_000 + b"}",
    "letters": '{"clock": "\u00e9"}'.encode("latin-1"),
    "too much": b" " * (2**26 + 1),
}


@pytest.mark.parametrize("data", HOSTILE_JSON.values(), ids=HOSTILE_JSON)
@pytest.mark.parametrize("name", ["state.json", "manifest.json"])
def test_json_of_any_other_kind_is_refused_with_the_file(folder, name, data):
    (folder / name).write_bytes(data)
    if name == "state.json":
        forge(folder)
    with pytest.raises(CheckpointError, match=name):
        read_content(folder)


def header(end=4, dtype="F32", **shapes):
    fields = {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, end]} for name, shape in shapes.items()}
    text = json.dumps(fields).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4)


HOSTILE_TENSORS = {
    "nothing": b"",
    "a header of 2**62 bytes": struct.pack("<Q", 2**62) + b"{}",
    "more than there is": header(4 * 10**9, x=[10**9]),
    "another size": header(x=[2]),
    "overlapping": header(x=[1], y=[1]),
    "negative": header(x=[-1]),
    "no dtype": header(dtype="os.system", x=[1]),
    "overflowing": header(x=[2**40, 2**40]),
}


@pytest.mark.parametrize("name", ["model.safetensors", SHARDS[0]])
@pytest.mark.parametrize("data", HOSTILE_TENSORS.values(), ids=HOSTILE_TENSORS)
def test_tensors_whose_header_lies_are_refused_with_the_file(folder, name, data):
    (folder / name).write_bytes(data)
    forge(folder)
    with pytest.raises(CheckpointError, match=name):
        read_content(folder)


@pytest.mark.parametrize("call", ["os.scandir", "pathlib.Path.stat", "hashlib.sha256"])
def test_files_that_are_removed_while_they_are_read_are_an_error_of_the_checkpoint(folder, call, monkeypatch):
    manifest = read_manifest(folder)

    def gone(*args, **kwargs):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    with monkeypatch.context() as patched:
        patched.setattr("engine_core.checkpoint.reading.read_manifest", lambda folder: manifest)
        patched.setattr(call, gone)
        with pytest.raises(CheckpointError, match=r"ep0-ba3' can't be read: .*No such file"):
            read_content(folder)


def test_anything_but_a_checkpoint_is_refused(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for name, says in {"nothing": "does not exist", "file": "is a file", "folder": r"manifest\.json' can't be"}.items():
        with pytest.raises(CheckpointError, match=says):
            read_content(tmp_path / name)


@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename", "write"])
def test_a_disk_that_fails_leaves_what_was_there(folder, call, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    target = {"mkdir": "pathlib.Path.mkdir", "fsync": "os.fsync", "rename": "pathlib.Path.rename"}.get(call)
    with monkeypatch.context() as patched:
        patched.setattr(target or "engine_core.checkpoint.tensor_file._blocks", fail)
        with pytest.raises(CheckpointError, match=r"can't be written: .*No space left"):
            write_content(folder, Checkpoint({}, {}, {}))
    assert read_content(folder).state == CONTENT.state
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_former_checkpoint_is_there_until_the_new_one_is(folder, monkeypatch):
    """A process was killed between two renames, and the next one is too."""
    replaced = folder.with_name(".ep0-ba3.old")
    folder.rename(replaced)
    looked = []

    def killed(self, target):
        looked.append(replaced.exists())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.rename", killed)
        patched.setattr("shutil.rmtree", lambda path, **_: looked.append(path.name))
        with pytest.raises(KeyboardInterrupt):
            write_content(folder, Checkpoint({}, {}, {}))
    assert True in looked
    assert replaced.name not in looked
    assert read_content(replaced).state == CONTENT.state


def test_a_second_rename_that_fails_undoes_the_first(folder, monkeypatch):
    rename = type(folder).rename

    def fail(self, target):
        if self.name.endswith(".new"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr("pathlib.Path.rename", fail)
    with pytest.raises(CheckpointError, match="Input/output error"):
        write_content(folder, Checkpoint({}, {}, {}))
    assert read_content(folder).state == CONTENT.state
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_json_that_could_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"state\.json would take .* bytes"):
        write_content(tmp_path / "ep0-ba0", Checkpoint({}, {"x": "a" * 2**26}, {}))
    assert list(tmp_path.iterdir()) == []
