"""Without audit, too: who changes the loader's tensors in place is told in the first two batches of a fit."""

import dataclasses
import warnings

import pytest
import torch

from engine_core import Batches, algorithm_pass
from engine_core.engine import in_place
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


@pytest.mark.parametrize("event", ["after_dataloader", "before_train_batch", "before_forward", "after_train_batch"])
@pytest.mark.parametrize("size", [None, 3])
def test_an_algorithm_that_changes_the_loaders_tensors_is_told_of_once(event, size):
    assert told(acting(double, event), microbatch_size=size) == [finding(event.upper())]


def test_the_whole_batch_is_looked_at_after_its_first_microbatch():
    """The microbatch is gone by then, and the loader's tensor is not."""
    first, faulty = acting(lambda event, state: None, "before_forward"), acting(double, "after_train_batch")
    assert told(first, faulty, microbatch_size=3) == [finding("AFTER_TRAIN_BATCH", name="Faulty-2")]


def test_each_algorithm_is_told_of():
    assert told(acting(double, "after_dataloader"), acting(double, "batch_start")) == [
        finding(),
        finding("BATCH_START", name="Faulty-2"),
    ]


def test_the_warning_points_at_the_line_that_trains():
    with trainer(algorithms=acting(double, "after_dataloader")) as made, pytest.warns(AuditWarning) as warned:
        made.fit()
    assert warned[0].filename == __file__


@pytest.mark.parametrize("batch", [0, 1, 2, 3])
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


def test_what_the_model_changes_in_place_is_not_blamed_on_an_algorithm():
    class InPlaceModel(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.mul_(1))

    nothing = acting(lambda event, state: None, "before_forward", "after_forward")
    assert told(nothing, model=InPlaceModel(4, 3)) == []


@dataclasses.dataclass
class Pair:
    """Inputs and targets."""

    x: torch.Tensor
    y: torch.Tensor


class OwnLoss(torch.nn.Linear):
    def __init__(self, read):
        super().__init__(4, 3)
        self._read = read

    def forward(self, batch):
        return super().forward(self._read(batch)[0])

    def loss(self, outputs, batch):
        return torch.nn.functional.cross_entropy(outputs, self._read(batch)[1])


KINDS = {
    "['x']": (lambda x, y: {"x": x, "y": y}, lambda batch: (batch["x"], batch["y"])),
    ".x": (Pair, lambda batch: (batch.x, batch.y)),
    "[0]['x']": (lambda x, y: [{"x": x, "y": y}], lambda batch: (batch[0]["x"], batch[0]["y"])),
}


@pytest.mark.parametrize("path", KINDS)
def test_it_is_found_in_any_container(path):
    make, read = KINDS[path]
    data = [make(x, y) for x, y in batches(8, 8)]
    zero = acting(lambda event, state: read(state.batch)[0].zero_(), "after_dataloader")
    parts = Batches(dim={"": 0})
    assert told(zero, data=data, model=OwnLoss(read), loss_fn=None, batches=parts) == [finding(paths=path)]


def test_a_tensor_without_a_version_is_left_out():
    with torch.inference_mode():
        data = [(x.clone(), y.clone()) for x, y in batches(8, 8)]
    model = OwnLoss(lambda batch: [tensor.clone() for tensor in batch])
    nothing = acting(lambda event, state: None, "after_dataloader")
    assert told(nothing, data=data, model=model, loss_fn=None) == []


def test_an_audit_tells_of_it_alone():
    assert len(told(acting(double, "after_dataloader", writes=("batch",)), callbacks=["audit"])) == 1


def test_an_error_is_the_algorithms_own_all_the_same():
    def fail(event, state):
        raise OSError("lost")

    with trainer(algorithms=acting(fail, "after_dataloader")) as made, pytest.raises(OSError, match="lost") as failed:
        made.fit()
    assert failed.value.__notes__ == ["raised by apply of algorithm Faulty at AFTER_DATALOADER"]


def test_after_two_batches_nothing_is_looked_at(monkeypatch):
    looks = []
    versions = in_place.InPlace.versions
    monkeypatch.setattr(
        in_place.InPlace, "versions", lambda self, state: looks.append(state.timestamp.batch) or versions(self, state)
    )
    told(acting(lambda event, state: None, "after_dataloader", "before_loss"))
    assert looks == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_the_order_is_computed_once_all_the_same():
    calls = []

    @algorithm_pass(events=("after_dataloader",))
    def keep(algorithms, event):
        calls.append(len(algorithms))
        return algorithms

    assert told(acting(double, "after_dataloader"), fits=("3ba", "3ba"), algorithm_passes=keep) == [finding()]
    assert calls == [1]


def test_an_algorithm_that_joined_between_two_fits_is_looked_at():
    with trainer(max_duration="2ep") as made:
        made.fit("1ep")
        made.state.algorithms.append(acting(double, "after_dataloader"))
        with pytest.warns(AuditWarning, match="Faulty changed the loader's tensors in place"):
            made.fit("1ep")


def test_a_batch_that_contains_itself_is_looked_at_too():
    """As the nodes of a tree do that know their parents."""

    @dataclasses.dataclass
    class Node:
        x: torch.Tensor
        parent: object = None

    class Net(torch.nn.Linear):
        def forward(self, batch):
            return super().forward(batch.x)

        def loss(self, outputs, batch):
            return outputs.mean()

    nodes = [Node(torch.randn(4, 3)) for _ in range(3)]
    for node in nodes:
        node.parent = {"root": [node]}
    change = acting(lambda event, state: state.batch.x.mul_(2), "after_dataloader")
    rule = Batches(shared=("parent",))
    assert told(change, data=nodes, model=Net(3, 1), loss_fn=None, batches=rule) == [finding(paths=".x")]
