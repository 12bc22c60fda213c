"""Sharded checkpoints whose checksums are right and whose contents lie: each is refused before it takes memory."""

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine_core.checkpoint import Checkpoint, open_content, read_content, read_manifest, read_weights
from engine_core.errors import CheckpointError

from .shards import write
from .test_checkpoint_files import forge

MODEL = {"weight": torch.randn(4, 2), "bias": torch.randn(2)}
STATE = {"average": {"weight": {"$": "tensor", "name": "average.weight"}}}
TENSORS = {"average.weight": torch.randn(4, 2)}
CONTENT = Checkpoint(MODEL, STATE, TENSORS, {"average": {"algorithm": "EMA", "registered": "ema"}})
SECOND = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "ep0-ba3"
    write(path, CONTENT, 2)
    return path


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "ep0-ba3")


@pytest.fixture
def refused(folder, monkeypatch):
    """Return `refused(message, **changes of the manifest)`, which makes the checksums right and then reads."""

    def check(message, **changes):
        forge(folder, **changes)
        with monkeypatch.context() as patched:
            patched.setattr(torch, "empty", lambda *_, **__: pytest.fail("memory was taken"))
            for call in (read_content, lambda folder: open_content(folder, in_part=True)):
                with pytest.raises(CheckpointError, match=message):
                    call(folder)

    return check


OUTSIDE, NO_OFFSET = "a slice outside of it", f"the header of .*{SECOND}' has for 'weight'"


def rewrite_state(folder, change):
    state = json.loads((folder / "state.json").read_text())
    change(state)
    (folder / "state.json").write_text(json.dumps(state))


def change_second(folder, about=None, **tensors):
    """Write the second file of the model with other tensors, or with something else about where they belong."""
    with safe_open(folder / SECOND, framework="pt") as opened:
        offsets = json.loads(opened.metadata()["DCP_SHARDING_INFO"])
    own = {name: value for name, value in {**load_file(folder / SECOND), **tensors}.items() if value is not None}
    offsets = {name: offsets.get(name, {"saved_offsets": [0] * own[name].dim()}) for name in own}
    save_file(own, folder / SECOND, {"DCP_SHARDING_INFO": json.dumps(offsets) if about is None else about})


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ([0, 1], None),
        ([0, 0], "slices that overlap: .4, 1. at .0, 0. and .4, 1. at .0, 0."),
        ([0, -1], "a slice outside of it: .4, 1. at .0, -1."),
        *((outside, OUTSIDE) for outside in ([0, 2], [1, 1], [0, 2**63], [0, 10**400], [0], [0, 0, 1], [])),
        *((no, NO_OFFSET) for no in ([False, True], ["0", "1"], [0, 1.0], [0, [1]], None)),
    ],
)
def test_an_offset_that_no_piece_has_is_refused(offset, message, folder, refused):
    change_second(folder, json.dumps({"weight": {"saved_offsets": offset}, "bias": {"saved_offsets": [1]}}))
    if message is not None:
        refused(message)
    else:
        forge(folder)
        assert torch.equal(read_content(folder).model["weight"], MODEL["weight"])


@pytest.mark.parametrize(
    "about",
    ["", "{}", "[]", "7", "{", "[" * 100_000, '{"weight": {}}', '{"weight": 1, "weight": 2}', '{"weight": NaN}',
     '{"weight": 1' + "0" * 5000 + "}", '{"weight": {"saved_offsets": [0, 1]}}'],
    ids=lambda about: f"{about:.12}",
)  # fmt: skip
def test_a_header_without_a_place_for_each_piece_is_refused(about, folder, refused):
    change_second(folder, about)
    refused(f"the header of .*{SECOND}' does not say where its slices belong")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight": None}, "'weight' of shape .4, 2. is not whole: its 1 slices hold 4 of 8 elements"),
        ({"weight": torch.ones(3, 1)}, "is not whole: its 2 slices hold 7 of 8"),
        ({"weight": torch.ones(4, 0)}, "is not whole: its 2 slices hold 4 of 8"),
        ({"weight": torch.ones(5, 1)}, "a slice outside of it"),
        ({"weight": torch.ones(4)}, "a slice outside of it"),
        ({"weight": torch.ones(4, 1).double()}, "'weight' has slices of dtypes torch.float32, torch.float64"),
        ({"weight": torch.ones(4, 1).int()}, "'weight' has slices of dtypes torch.float32, torch.int32"),
        ({"other": torch.ones(2)}, f"{SECOND}' has 'other', whose shape is not said"),
    ],
)
def test_pieces_that_do_not_make_up_the_tensor_are_refused(tensors, message, folder, refused):
    change_second(folder, **tensors)
    refused(message)


def test_a_number_that_is_there_twice_is_refused(tmp_path, refused, folder):
    rewrite_state(folder, lambda state: state["shapes"]["model"].update(count=[]))
    refused("'count' of shape .. is not whole: its 0 slices hold 0 of 1 elements")
    for file in (SECOND, SECOND.replace("2-", "1-", 1)):
        with safe_open(folder / file, framework="pt") as opened:
            offsets = {**json.loads(opened.metadata()["DCP_SHARDING_INFO"]), "count": {"saved_offsets": []}}
        about = {"DCP_SHARDING_INFO": json.dumps(offsets)}
        save_file({**load_file(folder / file), "count": torch.tensor(3)}, folder / file, about)
    refused("'count' of shape .. is not whole: its 2 slices hold 2 of 1 elements")


@pytest.mark.parametrize(
    "shape",
    [None, 7, "4, 2", [4, -2], [True, 8], [4, 2.0], [2**63, 0], [10**400], [1] * 65, {"0": 4}, [4, 3], [2**62, 2]],
)
def test_a_shape_that_the_tensor_does_not_have_is_refused(shape, folder, refused):
    rewrite_state(folder, lambda state: state["shapes"]["model"].update(weight=shape))
    refused(r"state\.json' does not say what shapes the tensors of 'model' have|is not whole")


@pytest.mark.parametrize("shapes", [None, [], {}, {"model": {}}, {"model": [], "state": {}, "average/model": {}}])
def test_shapes_that_are_missing_are_refused(shapes, folder, refused):
    rewrite_state(folder, lambda state: state.update(shapes=shapes))
    refused(r"does not say what shapes|whose shape is not said")


@pytest.mark.parametrize("shards", [None, 0, -1, True, "2", 2.0, 10**5, 10**400, [2]])
def test_a_number_of_shards_that_is_none_is_refused(shards, refused):
    refused("an invalid number of shards", shards=shards)


def test_the_files_have_to_be_those_of_all_shards_and_no_others(folder, refused, tmp_path):
    refused("does not list the files of a checkpoint", shards=3)
    files, entry = read_manifest(folder)["files"], {"bytes": 0, "sha256": ""}
    (tmp_path / "secret").write_text("")
    for name in ("../secret", str(tmp_path / "secret"), "average/../../secret", "model-00003-of-00002.safetensors"):
        renamed = {name if own == SECOND else own: of for own, of in files.items()}
        for listed in ({**files, name: entry}, renamed):
            refused("does not list the files of a checkpoint", files=listed, shards=2)
    (folder / SECOND).unlink()
    refused(f"{SECOND}' is missing", files=files, shards=2)


@pytest.mark.parametrize(
    ("average", "message"),
    [
        (None, "does not list the files"),
        ([], r"manifest.json' has \[\] for its average"),
        ({"tensors": {"weight": ["x"]}}, "does not say where its average is"),
        ({"tensors": {}}, "the files of the average differ in 'weight'"),
        ({"tensors": {"bias": "x"}}, "the files of the average differ in 'bias'"),
    ],
)
def test_an_average_that_is_not_in_its_files_is_refused(average, message, refused):
    refused(message, average=average, schema=2)


@pytest.mark.parametrize(
    ("average", "message"),
    [
        (7, "has 7 for the average"),
        ({"weight": 7}, "has {'weight': 7} for the average"),
        ({"weight": {"$": "tensor", "name": "x"}}, "names the tensor 'x', which is in no file"),
        ({"other": {"$": "tensor", "name": "average.weight"}}, "has 'other', which is not a weight of the model"),
    ],
)
def test_a_state_that_names_another_average_is_refused(average, message, folder):
    rewrite_state(folder, lambda state: state.update(average=average))
    forge(folder)
    with pytest.raises(CheckpointError, match=message):
        read_weights(folder)


PAYLOADS = {
    "a file": lambda folder: (folder / "payload.pkl").write_bytes(b""),
    "an empty folder": lambda folder: (folder / "payload").mkdir(),
    "a file beside the averages": lambda folder: (folder / "average" / "payload").write_bytes(b""),
    "a link": lambda folder: (folder / "average").symlink_to((folder / "average").rename(folder.parent / "elsewhere")),
}


@pytest.mark.parametrize("make", PAYLOADS)
def test_what_the_manifest_does_not_name_is_refused(make, folder, refused):
    PAYLOADS[make](folder)
    refused("holds '(payload.*|average/payload|average)', which its manifest does not name")
