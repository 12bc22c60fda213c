"""Whose loss it is, and what the model gets then; what would hide the loss from algorithms is refused by name."""

import pytest
import torch
import transformers
from torch import nn

from engine_core.errors import ArgumentError, ArgumentTypeError, BatchKeyError, EngineError, UnsupportedError
from engine_core_transformers import EngineTrainer, EngineTrainerMixin

from .cases import make_net
from .transformers_runs import Digits, Net, arguments, make_trainer

LOSS = nn.CrossEntropyLoss()


class Hides(EngineTrainer):
    """Computes the loss by itself."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(inputs["pixel_values"])
        loss = LOSS(outputs["logits"], inputs["labels"])
        return (loss, outputs) if return_outputs else loss


class Doubles(EngineTrainer):
    """Changes what ours has computed."""

    def compute_loss(self, *args, return_outputs=False, **kwargs):
        found = super().compute_loss(*args, return_outputs=return_outputs, **kwargs)
        return (2 * found[0], found[1]) if return_outputs else 2 * found


class Behind(transformers.Trainer):
    def compute_loss(self, *args, **kwargs):
        raise AssertionError("is called")


def made(kind, tmp_path, **given):
    args = arguments(tmp_path, max_steps=2, eval_strategy="no", save_strategy="no")
    return kind(Net(), args, train_dataset=Digits(0, 53), **{"loss_fn": LOSS, "algorithms": ["ema"], **given})


def before(kind):
    return type("Before", (EngineTrainerMixin, kind), {})


def test_a_loss_that_algorithms_can_not_see_is_refused(tmp_path):
    says = r"Hides\.compute_loss hides the loss .* call super\(\)\.compute_loss\(\.\.\.\)"
    with pytest.raises(EngineError, match=says):
        made(Hides, tmp_path).train()
    made(Hides, tmp_path, loss_fn=None).train()  # a black box
    assert made(Doubles, tmp_path).train().global_step == 2


def test_the_loss_of_a_class_behind_the_mixin_is_not_dropped_in_silence(tmp_path):
    with pytest.raises(ArgumentError, match=r"loss_fn is the loss, and Behind\.compute_loss is another: leave one of"):
        made(before(Behind), tmp_path)


def test_what_is_no_loss_and_what_has_no_labels_is_named(tmp_path):
    with pytest.raises(ArgumentTypeError, match="loss_fn is a function of logits and labels, not 'ce'"):
        made(EngineTrainer, tmp_path, loss_fn="ce")
    with pytest.raises(BatchKeyError, match="label_"):
        made(EngineTrainer, tmp_path, label_key="label_").train()


def test_a_search_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="hyperparameter_search: make a trainer for each trial"):
        made(EngineTrainer, tmp_path).hyperparameter_search()


def test_nothing_empty_is_logged_at_the_end(tmp_path):
    keys = {"input_key": "pixel_values", "target_key": "labels"}
    trainer = make_trainer(tmp_path, [("selective_backprop", {**keys, "start": 0, "scale_factor": 1})])
    trainer.train()
    assert any("kept_fraction" in name for log in trainer.state.log_history for name in log)
    assert all(set(log) - {"step", "epoch"} for log in trainer.state.log_history)


class Told(nn.Module):
    """Keeps what it is called with, and computes a loss of its own if it gets labels."""

    def __init__(self):
        super().__init__()
        self.net, self.told = make_net(), []

    def _given(self, pixel_values, labels, **others):
        self.told.append((labels is not None, *sorted(others)))
        return self.net(pixel_values)

    def forward(self, pixel_values, labels=None):
        logits = self._given(pixel_values, labels)
        return {"logits": logits} if labels is None else {"loss": 0 * logits.sum(), "logits": logits}


class Tuples(Told):
    def forward(self, pixel_values, labels=None):
        logits = self._given(pixel_values, labels)
        return (logits,) if labels is None else (0 * logits.sum(), logits)


class Keywords(Told):
    def forward(self, pixel_values, labels=None, **others):
        return {"logits": self._given(pixel_values, labels, **others)}


class Kwargs(Told):
    """Names something that is no mapping of keywords so."""

    def forward(self, pixel_values, labels=None, kwargs=None):
        return {"logits": self._given(pixel_values, labels)}


@pytest.mark.parametrize(
    ("kind", "told"),
    [(Told, ()), (Tuples, ()), (Keywords, ("index",)), (Kwargs, ())],
    ids=["named", "tuples", "keywords", "kwargs"],
)
def test_the_model_is_called_without_the_labels(kind, told, tmp_path):
    ours, theirs = kind(), Told()
    args = {"num_train_epochs": 1, "remove_unused_columns": False}
    trainers = [make_trainer(tmp_path, model=model, args=args) for model in (ours, theirs)]
    for trainer in trainers:
        trainer.train()

    assert {*ours.told} == {(False, *told)} and len(ours.told) == 7 + 3
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    losses = [trainer.engine_state.metrics["eval_loss"] for trainer in trainers]
    assert losses[0] == losses[1] > 0


class Asks(EngineTrainer):
    """Looks at the outputs, as many overrides do."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[1]
        assert logits.shape == (len(inputs["labels"]), 10)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize(("loss_fn", "kind"), [(None, Tuples), (LOSS, Tuples), (LOSS, Net)])
def test_who_asks_for_the_outputs_gets_them(loss_fn, kind, tmp_path):
    trainer = make_trainer(tmp_path, model=kind(), kind=Asks, loss_fn=loss_fn, args={"max_steps": 2})
    assert trainer.train().global_step == 2


class Refuses(transformers.Trainer):
    """Gives no outputs in training."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        if return_outputs and model.training:
            raise ValueError("does not return outputs")
        return super().compute_loss(model, inputs, return_outputs, **kwargs)


def test_outputs_that_nobody_asks_for_are_not_asked_for_in_training(tmp_path):
    made(before(Refuses), tmp_path, loss_fn=None).train()
    trainer = make_trainer(tmp_path, ["ema"], kind=before(Refuses), loss_fn=None)
    trainer.train()
    assert trainer.engine_state.metrics["eval_loss"] > 0


def in_parts(logits, labels):
    half = nn.functional.cross_entropy(logits, labels) / 2
    return {"one": half, "other": half}


def in_a_tuple(logits, labels):
    return tuple(in_parts(logits, labels).values())


@pytest.mark.parametrize("loss_fn", [in_parts, in_a_tuple])
def test_a_loss_in_parts_is_summed_in_evaluations_too(loss_fn, tmp_path):
    whole, parts = (make_trainer(tmp_path, loss_fn=each).evaluate()["eval_loss"] for each in (LOSS, loss_fn))
    assert parts == pytest.approx(whole)


@pytest.mark.parametrize(("given", "names"), [(None, ["labels"]), (["index"], ["index", "labels"])])
def test_the_names_of_labels_that_the_user_gave_are_kept(given, names, tmp_path):
    seen = []
    trainer = make_trainer(
        tmp_path, args={"label_names": given}, compute_metrics=lambda found: seen.append(found.label_ids) or {}
    )
    assert trainer.label_names == names
    assert trainer.evaluate()["eval_loss"] > 0
    assert isinstance(seen[0], tuple) is (len(names) > 1)


class Scores(Told):
    def forward(self, pixel_values, labels=None):
        return {"scores": self.net(pixel_values), "other": pixel_values}


def test_a_model_without_logits_is_named_with_what_it_gives(tmp_path):
    says = "Scores gives scores and other, and loss_fn takes .logits.: let its forward .*leave loss_fn out"
    with pytest.raises(ArgumentError, match=says):
        make_trainer(tmp_path, model=Scores()).train()
