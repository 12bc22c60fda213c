"""What can't be spread over several ranks is refused before a process group is joined, and says what to do."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from engine_core import State, Trainer
from engine_core.parallel import FSDP
from engine_core.parallel.settings import check_torch
from engine_core.ranks import Ranks
from engine_core.trainer.manifest import check_alike


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")


# As torch.compile returns it; the real one takes seconds to import.
Compiled = type("OptimizedModule", (nn.Module,), {})
FSDP_SETTINGS = {"parallel": "fsdp"}


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        (nn.DataParallel(nn.Linear(2, 1)), {}, "the model is spread by DataParallel already: give the plain module"),
        (nn.Sequential(nn.DataParallel(nn.Linear(2, 1))), FSDP_SETTINGS, "its '0' is spread by DataParallel already"),
        (Compiled(), {}, r"call model.compile\(\), which compiles in place"),
        (nn.LazyLinear(2), {}, "weight has no shape yet: run the model on one batch"),
        (nn.Linear(2, 1), {"parallel": "fsdp", "precision": "amp_fp16"}, "'amp_fp16' does not work with FSDP"),
        (nn.Linear(2, 1), {"parallel": FSDP}, r"write FSDP\(\)"),
        (nn.Linear(2, 1), {"parallel": Ranks()}, r"or None, not <engine_core.ranks.Ranks"),  # which wrap no model
    ],
)
@pytest.mark.usefixtures("two")
def test_it_is_refused(model, settings, expected):
    with pytest.raises((ValueError, TypeError), match=expected):
        Trainer(model, device="cpu", **settings)
    assert not torch.distributed.is_initialized()


@pytest.mark.usefixtures("two")
def test_none_trains_alone_and_says_so():
    with pytest.warns(UserWarning, match="each of the 2 processes trains a model of its own"):
        Trainer(nn.Linear(2, 1), parallel=None, device="cpu").close()


def test_fsdp_refuses_a_torch_with_which_it_was_not_tried():
    check_torch("2.13.0+cpu")
    check_torch("3.0.1")
    with pytest.raises(ValueError, match=r"FSDP needs torch 2.13 or newer, and this is 2.9.1"):
        check_torch("2.9.1")


class Two(Ranks):
    """Rank 1 of two, where rank 0 has what is given."""

    rank, size = 1, 2

    def __init__(self, of_first):
        self.of_first = of_first

    def first(self, value):
        return self.of_first

    def each(self, value):
        return [[], value]


def test_ranks_that_differ_are_told_what_differs():
    with pytest.raises(ValueError, match="the ranks of a run have to be alike, and they differ:") as raised:
        ranks = Two({"Trainer.lr": "1", "model.b": "2"})
        check_alike(SimpleNamespace(state=State(ranks=ranks)), lambda _: {"Trainer": {"lr": 3}, "version": "1"})
    assert str(raised.value).splitlines()[1:] == [
        "  Trainer.lr is 3 on rank 1 and 1 on rank 0",
        "  model.b is absent on rank 1 and 2 on rank 0",
        "  version is 1 on rank 1 and absent on rank 0",
    ]
