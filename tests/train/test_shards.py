"""Sharded checkpoints: each process writes its pieces, torch and any number of processes read them."""

import threading

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed import checkpoint as dcp

from engine_core import load_model
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import (
    Checkpoint,
    Store,
    TensorSlice,
    export_weights,
    flatten,
    has_checkpoint,
    open_content,
    read_content,
    read_weights,
    resolve,
    restore,
    slice_rows,
    write_content,
    writing,
)
from engine_core.checkpoint.tensor_file import save
from engine_core.errors import CheckpointError, CheckpointWarning
from engine_core.time import Timestamp

from .parts import linear, same, trainer
from .shards import AVERAGE, CONTENT, MODEL, TENSORS, part_of, rank_of, write

needs_reader = pytest.mark.skipif(not hasattr(dcp, "HuggingFaceStorageReader"), reason="this torch lacks the reader")


def alike(some, others):
    """Are these the same tensors, in whatever order?"""
    return same(dict(sorted(some.items())), dict(sorted(others.items())))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sharded") / "ep0-ba3"
    write(path)
    return path


@pytest.mark.parametrize("size", [1, 2, 7])
def test_what_several_processes_wrote_is_read_as_one_would_have_written_it(size, tmp_path):
    write(tmp_path / "ep0-ba3", size=size)
    content = read_content(tmp_path / "ep0-ba3")
    assert alike(content.model, MODEL)
    assert alike(content.tensors, TENSORS)
    assert content.state == CONTENT.state
    assert content.manifest == {**CONTENT.manifest, "schema": 3, "shards": size}
    assert [path.name for path in tmp_path.iterdir()] == ["ep0-ba3"]


@needs_reader
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize(("within", "expected"), [("", MODEL), ("average", {"weight": TENSORS["average.weight"]})])
def test_torchs_reader_loads_weights_and_averages_by_their_names(within, expected, folder):
    loaded = {name: torch.full_like(value, 9) for name, value in expected.items()}
    dcp.load(loaded, storage_reader=dcp.HuggingFaceStorageReader(str(folder / within)))
    assert same(loaded, expected)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_any_number_of_processes_reads_its_own_part_of_each_tensor(size, folder):
    for rank in range(size):
        opened = open_content(folder, in_part=True)
        for name, tensor in MODEL.items():
            piece = slice_rows(tensor, rank, size)
            if isinstance(piece, TensorSlice):
                stored = opened.model[name]
                assert (stored.shape, stored.dtype) == (tuple(tensor.shape), tensor.dtype)
                assert same(stored.read(piece.offset, tuple(piece.tensor.shape)), piece.tensor)
        assert same(opened.tensors["optimizers.0.step"].read(), TENSORS["optimizers.0.step"])


def test_a_process_verifies_the_files_that_it_reads_from_and_no_others(tmp_path):
    write(tmp_path / "ep0-ba3")
    file = tmp_path / "ep0-ba3" / "model-00002-of-00004.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    half = open_content(tmp_path / "ep0-ba3", in_part=True).model["half"]
    assert same(half.read((0,), (1,)), MODEL["half"][:1])
    for read in (lambda: half.read((1,), (1,)), lambda: open_content(tmp_path / "ep0-ba3")):
        with pytest.raises(CheckpointError, match=r"model-00002-of-00004\.safetensors' is not what was written"):
            read()


def test_pieces_of_an_optimizers_state_have_one_name_on_all_ranks_and_come_back_whole(tmp_path):
    kernel = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    whole = {"exp_avg": torch.randn(5, 2), "kernel": kernel, "step": torch.tensor(3.0)}
    begun = Store(tmp_path).begin(Timestamp(batch=3))
    for rank in (1, 0):
        tensors, own = {}, {name: slice_rows(value, rank, 2) for name, value in whole.items()}
        state = flatten({"optimizers": [own]}, "", tensors)
        part = Checkpoint({}, {"own": state} if rank == 0 else {}, tensors, {})
        assert not has_checkpoint(tmp_path)
        Store(tmp_path).save(Timestamp(batch=3), part, rank_of(rank, 2), begun)
    assert resolve(tmp_path / "latest") == tmp_path / "ep0-ba3"
    content = read_content(tmp_path / "ep0-ba3")
    restored = restore(content.state["own"], content.tensors)
    assert same(restored, {"optimizers": [whole]})
    assert restored["optimizers"][0]["kernel"].is_contiguous(memory_format=torch.channels_last)


def test_a_run_resumes_from_a_sharded_checkpoint_and_its_model_is_loaded_as_from_another(tmp_path):
    with trainer(callbacks=[CheckpointSaver(tmp_path / "whole", "1ba")]) as made:
        made.fit("1ba")
    write(tmp_path / "sharded", read_content(resolve(tmp_path / "whole")), 3)
    loaded = [load_model(tmp_path / kind, linear).state_dict() for kind in ("whole", "sharded")]
    assert same(*loaded)
    ends = []
    for kind in ("whole", "sharded"):
        with trainer(load_path=tmp_path / kind) as made:
            made.fit()
        ends.append(made.state.model.state_dict())
    assert same(*ends)
    assert not same(ends[0], loaded[0])


@pytest.mark.parametrize("weights", ["evaluated", "trained"])
def test_weights_are_read_and_exported_as_one_file_and_not_into_the_checkpoint(weights, folder, tmp_path):
    expected = {**MODEL, "weight": TENSORS["average.weight"]} if weights == "evaluated" else MODEL
    assert alike(read_weights(folder, weights)[0], expected)
    export_weights(folder, tmp_path / "exported.safetensors", weights)
    save_file(expected, tmp_path / "expected.safetensors")
    assert (tmp_path / "exported.safetensors").read_bytes() == (tmp_path / "expected.safetensors").read_bytes()
    for within in ("", "average"):
        with pytest.raises(CheckpointError, match="which a further file would spoil"):
            export_weights(folder, folder / within / "w.safetensors", weights)


def test_a_file_of_tensors_is_what_safetensors_writes(tmp_path):
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "uint16"]
    names += ["complex64", "uint32", "uint64", "float8_e5m2", "float8_e4m3fn"]
    tensors = {f"x.{name}": torch.randint(2, (16,), dtype=torch.uint8).view(getattr(torch, name)) for name in names}
    tensors |= {'"\u00e9\n\x01': torch.zeros(0, 3), "scalar": torch.tensor(3.0), "large": torch.randn(2**19 + 3)}
    for given in (tensors, {}):
        save_file(given, tmp_path / "theirs", {"format": "pt"})
        save(tmp_path / "ours", given, {"format": "pt"})
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    with pytest.raises(CheckpointError, match=r"'x' is a tensor of dtype torch\.complex128, which a file can't hold"):
        save(tmp_path / "ours", {"x": torch.zeros(1, dtype=torch.complex128)})


def save_alone(rank, folder, **fields):
    store = Store(folder)
    begun = store.begin(Timestamp(batch=3)) if rank == 0 else ".ep0-ba3.gone.new"
    store.save(Timestamp(batch=3), part_of(CONTENT, rank, 3), rank_of(rank, 3, **fields), begun)


def test_rank_0_waits_no_longer_than_it_has_to_and_a_rank_that_does_not_see_the_folder_says_why(tmp_path):
    with pytest.raises(CheckpointError, match=r"ep0-ba3'.*: 0\.05 s are up, and ranks 1, 2 had not written a part"):
        save_alone(0, tmp_path, timeout_s=0.05)
    with pytest.raises(CheckpointError, match="a process has ended, and ranks 1, 2 had not written a part"):
        save_alone(0, tmp_path, is_lost=lambda: True)
    says = "rank 0 did not begin it, has given it up, or does not share this file system"
    with pytest.raises(CheckpointError, match=says):
        save_alone(1, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_cannot_write_ends_the_wait_of_rank_0(tmp_path):
    store, told = Store(tmp_path), []
    begun = store.begin(Timestamp(batch=3))
    bad = Checkpoint({"weight": TensorSlice(torch.zeros(1, dtype=torch.complex128), (0,), (2,))}, {}, {}, {})

    def fail():
        with pytest.raises(CheckpointError, match="the part of rank 1 can't be written") as caught:
            store.save(Timestamp(batch=3), bad, rank_of(1, 2), begun)
        told.append(str(caught.value))

    thread = threading.Thread(target=fail)
    thread.start()
    with pytest.raises(CheckpointError, match="rank 1 can't write its part: 'weight' is a tensor of dtype"):
        store.save(Timestamp(batch=3), part_of(CONTENT, 0, 2), rank_of(0, 2), begun)
    thread.join()
    assert len(told) == 1


def test_pieces_that_are_not_whole_together_are_not_saved(tmp_path):
    begun = Store(tmp_path).begin(Timestamp(batch=3))
    part = Checkpoint({"weight": TensorSlice(torch.ones(2), (0,), (4,))}, {}, {}, {})
    write_content(tmp_path / "ep0-ba3", part, rank_of(1, 2), begun)
    with pytest.raises(CheckpointError, match=r"'weight' of shape \[4\] has slices that overlap"):
        write_content(tmp_path / "ep0-ba3", part, rank_of(0, 2), begun)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_can_not_even_tell_rank_0_why_warns_of_it(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    begun = Store(tmp_path).begin(Timestamp(batch=3))
    monkeypatch.setattr(writing, "write_own", full)
    monkeypatch.setattr(writing, "_tell", full)
    with (
        pytest.warns(CheckpointWarning, match=r"the part of rank 1 can't be written in .*No space left on device"),
        pytest.raises(CheckpointError, match="No space left on device"),
    ):
        write_content(tmp_path / "ep0-ba3", part_of(CONTENT, 1, 2), rank_of(1, 2), begun)


def test_a_save_removes_what_a_dead_one_left_and_not_what_has_been_saved(tmp_path):
    store = Store(tmp_path)
    store.save(Timestamp(batch=1), CONTENT)
    dead = store.begin(Timestamp(batch=2))
    (tmp_path / dead / "part-00002.json").write_text("{}")
    begun = store.begin(Timestamp(batch=2))
    assert begun != dead
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([begun, "ep0-ba1", "latest"])


@pytest.mark.parametrize("weights", ["evaluated", "trained"])
def test_an_average_in_channels_last_is_read_too(weights, tmp_path):
    kernel = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    tensors = {}
    state = {"average": flatten({"kernel": kernel + 1}, "average", tensors)}
    write_content(tmp_path / "saved", Checkpoint({"kernel": kernel}, state, tensors, {"seed": 7, "average": AVERAGE}))
    assert torch.equal(read_weights(tmp_path / "saved", weights)[0]["kernel"], kernel + (weights == "evaluated"))
