"""Without audit, too: who changes the loader's tensors in place is told in the first two batches of a fit."""

import dataclasses
import warnings

import pytest
import torch

from engine_core import Batches
from engine_core.errors import AuditWarning

from .parts import acting, batches, trainer


def double(event, state):
    state.batch[0].mul_(2)


def told(*algorithms, data=None, fits=("1ep",), **settings):
    """Train on five batches, and return what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AuditWarning)
        data = batches(8, 8, 8, 8, 8) if data is None else data
        with trainer(data, algorithms=list(algorithms), max_duration="9ep", **settings) as made:
            for duration in fits:
                made.fit(duration)
    return [str(warning.message) for warning in caught if warning.category is AuditWarning]


def finding(event="AFTER_DATALOADER", batch=0, paths="[0]", name="Faulty"):
    return (
        f"{name} changed the loader's tensors in place (batch{paths}) at {event} of batch {batch}, and the loader may "
        "give them again: put a new tensor into the batch, as state.batch_set_item(key, tensor) does"
    )


@pytest.mark.parametrize("event", ["after_dataloader", "before_forward", "after_train_batch"])
@pytest.mark.parametrize("size", [None, 3])
def test_an_algorithm_that_changes_the_loaders_tensors_is_told_of_once(event, size):
    assert told(acting(double, event), microbatch_size=size) == [finding(event.upper())]


@pytest.mark.parametrize("batch", [1, 2])
def test_it_is_looked_for_in_the_first_two_batches_of_each_fit(batch):
    late = acting(double, "after_dataloader", match=lambda event, state: state.timestamp.batch == batch)
    always = acting(lambda event, state: None, "after_dataloader", name="Other")
    assert told(late, always) == ([finding(batch=batch)] if batch < 2 else [])
    assert told(late, always, fits=("2ba", "2ba")) == [finding(batch=batch)]


def test_a_new_tensor_or_a_change_of_ones_own_is_fine():
    def replace(event, state):
        state.batch_set_item(0, state.batch[0] + 1)

    def then_double(event, state):
        replace(event, state)
        double(event, state)

    first = acting(replace, "after_dataloader", name="Replace", before=("faulty",))
    assert told(first, acting(double, "after_dataloader", "before_forward")) == []
    assert told(acting(then_double, "after_dataloader")) == []


def test_what_the_model_changes_in_place_is_not_blamed_on_an_algorithm_and_inference_tensors_are_left_out():
    class InPlaceModel(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.mul_(1))

    class Copies(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.clone())

    data = batches(8, 8)
    with torch.inference_mode():  # they have no version
        data = [(x.clone(), y) for x, y in data]
    nothing = lambda event, state: None  # noqa: E731
    assert told(acting(nothing, "before_forward", "after_forward"), model=InPlaceModel(4, 3)) == []
    assert told(acting(nothing, "after_dataloader"), data=data, model=Copies(4, 3)) == []


def test_the_warning_points_at_the_line_that_trains():
    with trainer(algorithms=acting(double, "after_dataloader")) as made, pytest.warns(AuditWarning) as warned:
        made.fit()
    assert [warning.filename for warning in warned] == [__file__]


@dataclasses.dataclass
class Node:
    """A batch that contains itself, as the nodes of a tree do that know their parents."""

    x: torch.Tensor
    parents: object = None


class Net(torch.nn.Linear):
    def forward(self, batch):
        return super().forward(batch["node"].x)

    def loss(self, outputs, batch):
        return outputs.mean()


def test_it_is_found_in_any_container():
    nodes = [Node(torch.randn(4, 3)) for _ in range(3)]
    for node in nodes:
        node.parents = {"root": [node]}
    change = acting(lambda event, state: state.batch["node"].x.mul_(2), "after_dataloader")
    settings = {"data": [{"node": node} for node in nodes], "model": Net(3, 1), "loss_fn": None}
    rule = Batches(shared=("node.parents",))
    assert told(change, **settings, batches=rule) == [finding(paths="['node'].x")]
