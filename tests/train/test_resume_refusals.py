"""What a checkpoint is not loaded into, what of it is loaded leniently or alone, and models that load themselves."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, load_model
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, CheckpointError, CheckpointWarning

from .parts import batches, linear, same, trainer
from .test_resume import OPTIMIZERS, SCHEDULERS, Noise, loader, run, saved_runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    saved_runs(path, "1ep")
    return path


WIDER = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)]
RENAMED = OrderedDict(body=nn.Linear(4, 6), head=nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(*WIDER), r"'0.weight' is \(6, 4\) in the checkpoint and \(8, 4\) in the model"),
        (
            nn.Sequential(RENAMED),
            r"'body.weight' is missing .* mean '4.weight'\?\n[\s\S]*'0.weight' .* mean 'head.weight'\?\n",
        ),
    ],
)
def test_weights_of_another_model_are_refused_by_name_and_shape(model, message, folder):
    with pytest.raises(CheckpointError, match=message):
        trainer(loader(), model, load_path=folder, load_weights_only=True)


class Needed(Noise):
    @staticmethod
    def required_on_load():
        return True


@pytest.mark.parametrize("strict", [True, False])
def test_an_algorithm_that_has_to_be_there_is_named_if_it_is_missing(strict, tmp_path):
    saved_runs(tmp_path, "1ep", algorithms=[Needed()])
    with pytest.raises(CheckpointError, match=r"was saved with Needed, and .* not have it: add 'needed' to"):
        run(algorithms=(), load_path=tmp_path, seed=None, load_strict=strict)


def sgd(which):
    return lambda parameters: torch.optim.SGD(list(parameters)[which], lr=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizers": OPTIMIZERS["two"]}, "the checkpoint has 1 optimizers, and this run has 2"),
        ({"optimizers": sgd(slice(2))}, r"optimizers\[0\] \(SGD\) differs from the saved one in its parameters"),
        ({"optimizers": sgd(slice(None, None, -1))}, r"or their order: '4\.bias' where it had '0\.weight'"),
        ({"schedulers": SCHEDULERS["cosine"]}, "the checkpoint has 0 schedulers, and this run has 1"),
    ],
)
def test_parts_of_another_run_are_refused_by_name(settings, message, folder):
    with pytest.raises(CheckpointError, match=message):
        run(load_path=folder, seed=None, **settings)


def test_autoresume_needs_a_saver():
    with pytest.raises(ValueError, match="needs a CheckpointSaver among the callbacks, to resume from its folder: add"):
        run(autoresume=True)


class Average(Noise):
    """Keeps tensors by the names of the weights, and uses them when it next runs."""

    metadata = AlgorithmMetadata(events=(Event.AFTER_DATALOADER,))

    def state_dict(self):
        return {"average": {"weight": torch.ones(3, 4), "bias": torch.ones(3)}}

    def load_state_dict(self, state):
        self._count = 99


class Two(nn.Module):
    """A net with a number of each kind beside its weights."""

    def __init__(self, dtype, third=torch.float64):
        super().__init__()
        self.layer = nn.Linear(4, 3).to(dtype)
        self.register_buffer("third", torch.full((1,), 1 / 3, dtype=torch.float64).to(third))

    def forward(self, x):
        return self.layer(x.to(self.layer.weight.dtype)).float()


ADAMW = {"optimizers": lambda p: torch.optim.AdamW(p, lr=0.01)}


def saved(folder, model, **settings):
    with trainer(loader(), model, callbacks=[CheckpointSaver(folder)], **{**ADAMW, **settings}) as made:
        made.fit()
    return folder


def test_where_all_weights_fit_leniently_nothing_is_left_out(tmp_path):
    algorithm, path = Average(), saved(tmp_path, linear(), algorithms=[Average()])
    with trainer(loader(), linear(), load_path=path, load_strict=False, algorithms=[algorithm], **ADAMW) as made:
        assert len(made.state.optimizers[0].state_dict()["state"]) == 2
    assert algorithm._count == 99


def test_where_a_weight_is_left_out_the_warning_says_that_states_are_too(tmp_path):
    path = saved(tmp_path, linear(), algorithms=[Average(), Noise()])
    algorithms = [Average(), Noise()]
    with pytest.warns(CheckpointWarning) as told:
        made = trainer(loader(), nn.Linear(4, 2), load_path=path, load_strict=False, algorithms=algorithms, **ADAMW)
    made.close()
    (warning,) = told
    assert str(warning.message) == (
        "not all weights were loaded:\n"
        "  'weight' is (3, 4) in the checkpoint and (2, 4) in the model\n"
        "  'bias' is (3,) in the checkpoint and (2,) in the model\n"
        "  the states of optimizers, schedulers, Average were not loaded either and start fresh"
    )
    assert made.state.optimizers[0].state_dict()["state"] == {}
    assert [algorithm._count for algorithm in algorithms] == [0, 4]


FLOAT_TO_INT = "'third' is torch.float64 in the checkpoint and torch.int32 in the model"


def test_a_run_is_resumed_only_with_weights_of_the_same_types_and_weights_alone_are_cast_but_not_truncated(tmp_path):
    source, model = Two(torch.float32), Two(torch.bfloat16)
    path = saved(tmp_path, source)
    of_layer = "'layer.weight' is torch.float32 in the checkpoint and torch.bfloat16 in the model"
    for other, message in ((model, of_layer), (Two(torch.float32, torch.int32), FLOAT_TO_INT)):
        with pytest.raises(CheckpointError, match=message):
            trainer(loader(), other, load_path=path, **ADAMW)
    trainer(loader(), model, load_path=path, load_weights_only=True).close()
    assert same(model.layer.bias, source.layer.bias.bfloat16())
    with pytest.raises(CheckpointError, match=FLOAT_TO_INT):
        trainer(loader(), Two(torch.float32, torch.int32), load_path=path, load_weights_only=True)


def test_weights_alone_from_nowhere_are_refused(tmp_path):
    for settings in ({}, {"autoresume": True, "callbacks": [CheckpointSaver(tmp_path)]}):
        with pytest.raises(
            ArgumentError, match="load_weights_only=True needs load_path, the checkpoint with the weights"
        ):
            trainer(load_weights_only=True, **settings)


def test_a_run_that_begins_with_weights_is_resumed_as_a_whole(tmp_path):
    path = saved(tmp_path / "pretrained", linear())
    given = {"load_path": path, "load_weights_only": True, "autoresume": True, **ADAMW}
    for done in (0, 4):
        with trainer(loader(), linear(), callbacks=[CheckpointSaver(tmp_path / "run")], **given) as made:
            assert made.state.timestamp.batch == done
            if done == 0:
                made.fit("4ba")


class Late(nn.Module):
    """A buffer that the first batch sizes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x):
        if not len(self.seen):
            self.seen = torch.zeros(x.shape[1])
        self.seen += x.detach().mean(0)
        return self.layer(x - 0.01 * self.seen)


class Sized(Late):
    """The buffer loads in the size that was saved."""

    def _load_from_state_dict(self, state_dict, prefix, *others):
        if f"{prefix}seen" in state_dict:
            self.seen = torch.zeros_like(state_dict[f"{prefix}seen"])
        super()._load_from_state_dict(state_dict, prefix, *others)


class Named(nn.Module):
    """A layer, saved under a name that it had before."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_load_state_dict_pre_hook(self._rename)

    @staticmethod
    def _rename(module, state_dict, prefix, *others):
        for name in ("weight", "bias"):
            if f"{prefix}layer.{name}" in state_dict:
                state_dict[f"{prefix}head.{name}"] = state_dict.pop(f"{prefix}layer.{name}")

    def forward(self, x):
        return self.head(x)


class Before(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


def training(model, folder, **settings):
    torch.manual_seed(2)
    given = {"optimizers": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "max_duration": "2ep", **settings}
    return trainer(batches(6, 6), model(), seed=1, callbacks=CheckpointSaver(folder, "1ba"), **given)


KINDS = {"sized": (Sized, Sized), "renamed": (Before, Named)}


@pytest.mark.parametrize(("old", "new"), KINDS.values(), ids=KINDS)
def test_it_is_resumed_and_a_model_or_another_run_gets_its_weights(old, new, tmp_path):
    def weights(model):
        return list(model.state_dict().values())

    with training(old, tmp_path / "whole") as whole:
        whole.fit()
    with training(old, tmp_path / "first") as first:
        first.fit("1ba")
    with training(new, tmp_path / "second", load_path=tmp_path / "first") as second:
        second.fit()
    assert same(weights(second.state.model), weights(whole.state.model))
    expected, model = weights(first.state.model), new()
    assert same(weights(load_model(tmp_path / "first", new)), expected)
    training(lambda: model, tmp_path / "other", load_path=tmp_path / "first", load_weights_only=True).close()
    assert same(weights(model), expected)


class Later(Late):
    """Another one is made then, one is not saved, and a layer is lazy, which torch loads without a shape."""

    def __init__(self):
        super().__init__()
        self.register_buffer("least", None)
        self.register_buffer("now", torch.zeros(0), persistent=False)
        self.layer = nn.LazyLinear(3)

    def forward(self, x):
        self.now, self.least = x.detach(), x.detach().amin()
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_what_training_sized_is_named_once_when_no_new_model_can_load_a_checkpoint(tmp_path):
    def batched():
        model = Later()
        model(batches(6)[0][0])
        return model

    says = (
        "training gave 'seen' and 'least' of the model other shapes than they came with, so no checkpoint of this run "
        "loads into a new model: create them in their final shapes, run one batch before .*, or define _load_from_state"
    )
    with pytest.warns(CheckpointWarning, match=says) as told, training(Later, tmp_path) as one:
        one.fit("3ba")
    assert len(told) == 1
    with pytest.raises(CheckpointError, match=r"'seen' is \(4,\) in the checkpoint and \(0,\) in the model"):
        training(Later, tmp_path / "other", load_path=tmp_path)
    with training(batched, tmp_path / "another", load_path=tmp_path) as other:
        other.fit()
    assert other.state.timestamp.batch == 4


@pytest.mark.parametrize("strict", [True, False])
def test_a_model_that_refuses_for_a_reason_of_its_own_is_quoted_and_what_a_lenient_one_leaves_out_named(
    strict, tmp_path
):
    class Choosy(Before):
        def load_state_dict(self, state_dict, *others, **more):
            raise LookupError("not today")

    class Lenient(nn.Sequential):
        def load_state_dict(self, state_dict, strict=True, assign=False):
            return super().load_state_dict(state_dict, strict=False)

    with training(Before, tmp_path) as one:
        one.fit("1ba")
    with pytest.raises(CheckpointError, match=r"the weights are another model's:\n  LookupError: not today"):
        training(Choosy, tmp_path / "other", load_path=tmp_path, load_strict=strict)
    with pytest.raises(CheckpointError, match=r"'0.weight' is missing from the checkpoint"):
        trainer(batches(6), Lenient(nn.Linear(4, 3)), load_path=tmp_path, load_weights_only=True)
