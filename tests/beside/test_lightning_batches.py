"""The loss may take its targets from any item of the batch: dicts and third items train as pairs do in our Trainer."""

import pytest
from torch.utils.data import DataLoader, default_collate

from engine_core.errors import EngineError
from engine_core_lightning import EngineCallback

from .cases import BATCH, SEED, differences, ended, make_algorithms, make_loaders, train_ours
from .lightning_runs import ITS_WARNINGS, Digits, make_trainer

pytestmark = ITS_WARNINGS
KEYS = {
    "a dict": {"input_key": "x", "target_key": "y"},
    "a third item": {"input_key": 0, "target_key": 2},
    "inputs last": {"input_key": 2, "target_key": 0},
}


def collated(form, rows):
    """Return a batch of images, digits and a group of each row in another form."""
    images, digits, numbers = default_collate(rows)
    groups = numbers % 10
    if form == "a dict":
        return {"group": groups, "x": images, "y": digits}
    return (images, groups, digits) if form == "a third item" else (digits, groups, images)


def fit(form, algorithms):
    """Train on batches of a form, and return the module and the callback."""
    keys = KEYS[form]

    class Other(Digits):
        def training_step(self, batch, batch_idx):
            return self.criterion(self.net(batch[keys["input_key"]]), batch[keys["target_key"]])

    train, held = make_loaders()
    loader = DataLoader(train.dataset, batch_size=BATCH, collate_fn=lambda rows: collated(form, rows))
    module, callback = Other(), EngineCallback(algorithms, model="net", loss_fn="criterion", seed=SEED)
    make_trainer([callback]).fit(module, loader, held)
    return module, callback


@pytest.mark.parametrize(
    ("form", "case"),
    [
        ("a dict", "together"),
        ("a third item", "mixup"),
        ("a third item", "label_smoothing"),
        ("inputs last", "gradient_penalty"),
    ],
)
def test_batches_of_another_form_train_as_in_our_trainer(form, case):
    module, callback = fit(form, make_algorithms(case, KEYS[form]))
    assert differences(ended(module.net, callback.state, module.losses), train_ours(case)) == []


def test_a_loss_that_is_interpolated_takes_the_targets_of_the_step():
    given = {"interpolate_loss": True, "alpha": 0.4}
    module, callback = fit("a dict", [("mixup", {**given, **KEYS["a dict"]})])
    ours = train_ours("none", algorithms=[("mixup", given)])
    assert differences(ended(module.net, callback.state, module.losses), ours) == []


@pytest.mark.parametrize(
    ("form", "algorithm", "message"),
    [
        ("a third item", ("selective_backprop", {"start": 0, "end": 1, "interrupt": 0}), r"batch\[2\]: set .*_key=2"),
        ("a dict", ("label_smoothing", {"target_key": "group"}), r"batch\['y'\]: set target_key='y'"),
    ],
)
def test_an_algorithm_that_takes_another_item_for_the_targets_is_refused_with_the_key(form, algorithm, message):
    with pytest.raises(EngineError, match=rf"takes the targets from target_key=.* self.criterion {message}"):
        fit(form, [algorithm])
