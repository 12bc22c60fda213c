"""A run on several processes is saved and resumed: by as many processes to the bit, by others to rounding."""

from pathlib import Path

import pytest
import torch

from engine_core.checkpoint import read_content, resolve
from engine_core.ranks import Ranks
from engine_core.time import Timestamp

from . import resuming
from .starting import start, written_by

pytestmark = [pytest.mark.ranks, pytest.mark.full, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]
OF_WEIGHTS = 5e-6
ONE_TO_ALL = [(name, way) for name in resuming.MOVED for way in ("ddp", "fsdp") if name != "local"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("resuming") / "two"


@pytest.fixture(scope="module")
def found(folder):
    return written_by(resuming.__file__, 2, str(folder), "whole")


@pytest.fixture(scope="module")
def alone():
    """Return what a run in one process gives."""
    return resuming.run(None, Ranks(), shuffle=True)


@pytest.fixture(scope="module")
def by_one(found, folder):
    """Resume in one process what two have saved; return where that is saved again, and how it ends."""
    place, ended = folder.with_name("one"), {}
    for name, case in resuming.MOVED.items():
        given = {"shuffle": case["way"] != "local"}
        ended[name] = resuming.run(None, Ranks(), load_path=folder / name, **given)
        at = [resuming.Pause(resuming.PAUSE)]
        resuming.run(place / name, Ranks(), at, load_path=folder / name, **given)
    return place, ended


@pytest.fixture(scope="module")
def by_four(by_one):
    return written_by(resuming.__file__, 4, str(by_one[0]), "moved")


def difference(one, other):
    """Return the largest difference of a weight."""
    pairs = [(torch.tensor(one["weights"][name]), torch.tensor(other["weights"][name])) for name in one["weights"]]
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("name", resuming.CASES)
def test_as_many_ranks_resume_to_the_bit_on_every_rank_in_mid_epoch(found, folder, name):
    for of_rank in found:
        whole, cut, resumed = of_rank[name]
        assert cut["clock"][1] == resuming.PAUSE
        assert cut["clock"][4] > 0
        assert cut["logs"] + resumed["logs"] == whole["logs"]
        assert {k: v for k, v in resumed.items() if k != "logs"} == {k: v for k, v in whole.items() if k != "logs"}
    assert len({str(of_rank[name][0]["weights"]) for of_rank in found}) == 1
    assert len({str(of_rank[name][0]["next"]) for of_rank in found}) == 2, "the ranks draw apart"
    whole, resumed = (read_content(resolve(folder / name / each)) for each in ("whole", "cut"))
    for one, other in ((whole.model, resumed.model), (whole.tensors, resumed.tensors)):
        assert [key for key in {*one, *other} if not torch.equal(one[key], other[key])] == []
    assert [*differing(whole.state, resumed.state)] == []


def differing(one, other, name=""):
    """Return where two saved states differ, but for times and the folder's name."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, items in enumerate(zip(one, other, strict=True)):
            yield from differing(*items, f"{name}[{place}]")
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one.keys() - {"elapsed_s", "scoring_s", "folder"}:
            yield from differing(one[key], other[key], f"{name}.{key}")
    elif one != other:
        yield f"{name}: {one} != {other}"


def test_a_checkpoint_has_the_generators_of_each_rank_and_what_ranks_have_alike_once(found, folder):
    for name in ("averages", "sharded", "whole, in shards"):
        content = read_content(resolve(folder / name / "whole"))
        of_ranks = [content.tensors[f"ranks.{rank}.generators.torch"] for rank in range(2)]
        assert torch.equal(content.tensors["generators.torch"], of_ranks[0])
        assert not torch.equal(*of_ranks)
        assert [any(part["listeners"].values()) for part in content.state["ranks"]] == [False, False]
    assert (folder / "whole, in shards/whole/latest").read_text().strip() == "ep3-ba21"
    assert len([*(folder / "whole, in shards/whole/ep3-ba21").glob("model-*-of-00002.safetensors")]) == 2
    assert (folder / "sharded, in one file/whole/ep3-ba21/model.safetensors").exists()


@pytest.mark.parametrize(("name", "way"), ONE_TO_ALL)
def test_two_ranks_resume_in_another_way(found, alone, name, way):
    was = resuming.MOVED[name]["way"]
    told = [f"this run differs from the one that was saved: parallel is {way!r}, was {was!r}"] if way != was else []
    for rank, of_rank in enumerate(found):
        (resumed,) = of_rank[f"{name} to {way}"]
        assert difference(resumed, alone) <= OF_WEIGHTS
        assert (resumed["clock"], resumed["warned"]) == (alone["clock"], [] if rank else told)


@pytest.mark.parametrize("name", [name for name in resuming.MOVED if name != "local"])
def test_one_process_resumes_what_two_saved(by_one, alone, name):
    resumed = by_one[1][name]
    assert difference(resumed, alone) <= OF_WEIGHTS
    assert resumed["clock"] == alone["clock"]
    assert resumed["warned"][0] == "this run differs from the one that was saved: world_size is 1, was 2"


@pytest.mark.parametrize(("name", "way"), ONE_TO_ALL)
def test_four_ranks_resume_what_one_saved_that_resumed_what_two_saved(by_four, alone, name, way):
    for of_rank in by_four:
        (resumed,) = of_rank[f"{name} to {way}"]
        assert difference(resumed, alone) <= OF_WEIGHTS
        assert resumed["clock"] == alone["clock"]
    assert len({str(of_rank[f"{name} to {way}"][0]["next"]) for of_rank in by_four}) == 4, "new ranks draw apart"
    assert by_four[0][f"{name} to {way}"][0]["warned"] == [
        "this run differs from the one that was saved: world_size is 4, was 1",
        f"this run differs from the one that was saved: parallel is {way!r}, was None",
    ]


def test_ranks_with_rows_of_their_own_begin_the_epoch_anew_and_world_size_and_way_are_differences(by_one, by_four):
    told = "the train_dataloader gives {}, and that of the saved run gave others: the epoch begins anew".format
    assert told("the rows of all ranks") in by_one[1]["local"]["warned"]
    (resumed,) = by_four[0]["local to local"]
    assert told("each rank its own rows") in resumed["warned"]
    for of_rank in by_four:
        assert "\n  world_size is 4, was 1\n  parallel is 'ddp', was None\n" in of_rank["refused"]


def test_weights_alone_are_loaded_on_all_ranks(by_four, by_one):
    saved = read_content(resolve(by_one[0] / "from fsdp")).model
    for of_rank in by_four:
        clock, weights = of_rank["weights alone"]
        assert clock == [0, 0]
        assert all(torch.equal(torch.tensor(weights[name]), value) for name, value in saved.items())


def test_seed_name_ends_and_intervals_in_every_unit_are_those_of_rank_0(found):
    first, second = (of_rank["units"] for of_rank in found)
    assert first == second
    assert [clock[:3] for _, _, clock, _ in first][:2] == [[1, 11, 85], [1, 8, 61]]
    assert [clock[1] for clock in first[0][3]] == [3, 6, 9, 11]
    assert first[2][2][Timestamp._fields.index("elapsed_s")] >= 0.4


def test_a_rollback_restores_on_each_rank_what_that_rank_had_in_the_checkpoint_of_rank_0(found):
    for of_rank in found:
        drawn, _, weights = of_rank["rolled back"]
        assert drawn[4] == drawn[2] != drawn[3]
        assert weights == found[0]["rolled back"][2]
    first, second = (of_rank["rolled back"] for of_rank in found)
    assert first[0][2] != second[0][2]
    assert "restored from" in first[1][0]
    assert second[1] == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_on_any_rank_is_told_once_and_all_train_on(found, folder, rank):
    whole = found[0]["sharded"][0]
    first, second = (of_rank[f"no room on rank {rank}"][0] for of_rank in found)
    assert (first["weights"], second["weights"]) == (whole["weights"], whole["weights"])
    assert second["warned"] == []
    assert len(first["warned"]) == 1
    assert "No space left on device" in first["warned"][0]
    assert not [*(folder / f"no room {rank}").glob("*ep*")]


def test_a_run_whose_ranks_are_killed_while_they_save_resumes_to_the_bit(found, folder):
    place = folder.with_name("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        ended = start(Path(resuming.__file__), 2, str(place), "killed", restarts=2)
    assert ended.rc == 0, ended.output
    for rank, of_rank in enumerate(ended.written):
        (resumed,), (whole, *_) = of_rank["killed"], found[rank]["sharded"]
        logs = resumed.pop("logs")
        assert resumed == {name: value for name, value in whole.items() if name != "logs"}
        assert logs == whole["logs"][-len(logs) or len(whole["logs"]) :]
    assert sorted(path.name for path in place.iterdir()) == (
        [".id", ".lock", "best", "ep2-ba19", "ep2-ba20", "ep2-ba21", "ep3-ba21", "latest"]
    )
