"""An item of the batch that nothing reads: one warning names it, and only where it is certain."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from engine_core import Algorithm, Batches, Callback, ModelLoss, Objective
from engine_core.errors import UnreadItemWarning
from engine_core.metadata import AlgorithmMetadata

from .parts import Memory, at, linear, rows, trainer

THREE = [(*rows(8), torch.ones(8)), (*rows(8, 2), torch.ones(8))]


def told(data: Any = THREE, **settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found, trainer(data, max_duration="2ep", **settings) as run:
        warnings.simplefilter("always")
        run.fit("1ep")
        run.fit()
    return [str(each.message) for each in found if each.category is UnreadItemWarning]


class Reads(Algorithm):
    """Reads an item that a setting names."""

    metadata = AlgorithmMetadata(events=("after_dataloader",))

    def __init__(self, weight_key: Any = 2) -> None:
        self._weight_key = weight_key

    def match(self, event: Any, state: Any) -> bool:
        return True

    def apply(self, event: Any, state: Any, logger: Any) -> None:
        state.batch_get_item(self._weight_key)


class ReadsAnything(Reads):
    def __init__(self) -> None:
        pass

    def apply(self, event: Any, state: Any, logger: Any) -> None:
        pass


class Averages(ReadsAnything):
    """Evaluates with an average of the weights."""

    metadata = AlgorithmMetadata(events=("batch_end", "eval_start", "eval_end"))

    def averaged_state_dict(self) -> None:
        return None


class Given(Reads):
    """Calls a function that may read anything."""

    def __init__(self) -> None:
        super().__init__(0)
        self.score = len


class Surgery(ReadsAnything):
    """Can't read a batch, since it runs before there is one."""

    metadata = AlgorithmMetadata(events=("init",))


class Own(Objective):
    """Might read anything."""


class WholeBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, batch: Any) -> Any:
        return self.net(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return (nn.functional.cross_entropy(outputs, batch[1], reduction="none") * batch[2]).mean()


def test_one_warning_names_the_item_and_what_to_write() -> None:
    (only,) = told()
    assert only == (
        "nothing reads item 2 of the batch, a Tensor of shape (8,): the model gets item 0, and the loss item 1. If the "
        "loss needs it, give Trainer(objective=engine_core.Objective(loss_fn, targets=(1, 2))); if the last item is "
        "the target, Objective(loss_fn, inputs=(0, 1), targets=2)"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithms": [Reads(0)]},
        {"algorithms": [Surgery()]},
        {"algorithms": [Averages()]},
        {"callbacks": ["loss_guard"]},
        {"loggers": [Memory()]},
        {"microbatch_size": 4},
        {"metrics": {}, "eval_dataloader": [rows(4)]},
        {"loss_fn": None, "objective": Objective(nn.CrossEntropyLoss(), inputs=(0,), targets=1)},
        {"data": [[*batch] for batch in THREE]},
    ],
)
def test_what_can_not_read_it_leaves_the_warning(settings: dict[str, Any]) -> None:
    assert len(told(**settings)) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithms": [Reads()]},
        {"algorithms": [Reads(-1)]},
        {"algorithms": [Reads((lambda batch: batch[2], lambda batch, value: batch))]},
        {"algorithms": [ReadsAnything()]},
        {"algorithms": [Given()]},
        {"callbacks": [at("batch_end", lambda state: None)]},
        {"callbacks": [at("epoch_end", lambda state: None)]},
        {"loss_fn": None, "objective": Own(nn.CrossEntropyLoss())},
        {"loss_fn": None, "objective": ModelLoss(0, 1, targets=1, inputs=(0,))},
        {"loss_fn": None, "model": WholeBatch()},
        {"loss_fn": lambda outputs, both: nn.functional.cross_entropy(outputs, both[0]), "targets": (1, 2)},
        {"batches": Batches(tokens=len)},
        {"batches": Batches(shared=(2,))},
        {"data": [rows(8), rows(8, 2)]},
        {"data": [(*rows(8), "a name")]},
        {"data": [(*rows(8), ["a", "name"] * 4)]},
    ],
)
def test_where_something_may_read_it_there_is_none(settings: dict[str, Any]) -> None:
    if "targets" in settings:
        settings = {"objective": Objective(settings["loss_fn"], targets=settings["targets"]), "loss_fn": None}
    if isinstance(settings.get("objective"), ModelLoss):
        settings = {**settings, "model": LossInForward()}
    assert told(**settings) == []


class LossInForward(WholeBatch):
    def forward(self, inputs: Any) -> Any:
        return (self.net(inputs).square().mean(), inputs)


def test_a_callback_that_only_begins_reads_none() -> None:
    class Begins(Callback):
        def fit_start(self, state: Any, logger: Any) -> None:
            pass

    assert len(told(callbacks=[Begins()])) == 1


def test_its_category_silences_it() -> None:
    with warnings.catch_warnings(), trainer(THREE) as run:
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UnreadItemWarning)
        run.fit()
