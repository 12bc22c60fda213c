"""An item of the batch that nothing reads: one warning names it, and only where it is certain."""

import warnings

import pytest
import torch
from torch import nn

from engine_core import Batches, ModelLoss, Objective
from engine_core.errors import UnreadItemWarning

from .parts import Memory, acting, at, rows, trainer

THREE = [(*rows(8), torch.ones(8)), (*rows(8, 2), torch.ones(8))]


def told(data=THREE, **settings):
    with warnings.catch_warnings(record=True) as found, trainer(data, max_duration="2ep", **settings) as run:
        warnings.simplefilter("always")
        run.fit("1ep")
        run.fit()
    return [str(each.message) for each in found if each.category is UnreadItemWarning]


def reads(weight_key, **more):
    """Return an algorithm that reads an item which a setting names."""
    algorithm = acting(lambda event, state: state.batch_get_item(weight_key), "after_dataloader")
    vars(algorithm).update(_weight_key=weight_key, **more)
    return algorithm


def passive(*events, **more):
    algorithm = acting(lambda event, state: None, *events)
    vars(algorithm).update(more)
    return algorithm


AVERAGES = passive("batch_end", "eval_start", "eval_end", averaged_state_dict=lambda: None)


class Own(Objective):
    """Might read anything."""


class WholeBatch(nn.Linear):
    def forward(self, batch):
        return super().forward(batch[0])

    def loss(self, outputs, batch):
        return (nn.functional.cross_entropy(outputs, batch[1], reduction="none") * batch[2]).mean()


def loss_of_both(outputs, both):
    return nn.functional.cross_entropy(outputs, both[0])


def test_one_warning_names_the_item_and_what_to_write():
    (only,) = told()
    assert only == (
        "nothing reads item 2 of the batch, a Tensor of shape (8,): the model gets item 0, and the loss item 1. If the "
        "loss needs it, give Trainer(objective=engine_core.Objective(loss_fn, targets=(1, 2))); if the last item is "
        "the target, Objective(loss_fn, inputs=(0, 1), targets=2)"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithms": [reads(0), passive("init"), AVERAGES]},  # the last two can't read it
        {"callbacks": ["loss_guard", at("fit_start", lambda state: None)]},
        {"loggers": [Memory()], "microbatch_size": 4, "metrics": {}, "eval_dataloader": [rows(4)]},
        {"loss_fn": None, "objective": Objective(nn.CrossEntropyLoss(), inputs=(0,), targets=1)},
        {"data": [[*batch] for batch in THREE]},
    ],
)
def test_what_can_not_read_it_leaves_the_warning(settings):
    assert len(told(**settings)) == 1


@pytest.mark.parametrize(
    "settings",
    [
        *({"algorithms": [reads(key)]} for key in (2, -1, (lambda batch: batch[2], lambda batch, value: batch))),
        {"algorithms": [passive("after_dataloader")]},
        {"algorithms": [reads(0, score=len)]},  # it calls a function, which may read anything
        *({"callbacks": [at(event, lambda state: None)]} for event in ("batch_end", "epoch_end")),
        {"loss_fn": None, "objective": Own(nn.CrossEntropyLoss())},
        {"loss_fn": None, "objective": Objective(loss_of_both, targets=(1, 2))},
        {"loss_fn": None, "model": WholeBatch(4, 3)},
        *({"batches": Batches(**given)} for given in ({"tokens": len}, {"shared": (2,)})),
        *({"data": [(*rows(8), *more)]} for more in ((), ("a name",), (["a", "name"] * 4,))),
    ],
)
def test_where_something_may_read_it_there_is_none(settings):
    assert told(**settings) == []


def test_a_model_that_computes_its_loss_may_read_it():
    class LossInForward(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs).square().mean(), inputs

    objective = ModelLoss(0, 1, targets=1, inputs=(0,))
    assert told(model=LossInForward(4, 3), loss_fn=None, objective=objective) == []
