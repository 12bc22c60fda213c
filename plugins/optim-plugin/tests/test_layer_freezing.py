"""LayerFreezing: the schedule literally, which layers count, what stays, resumed runs, and what is refused."""

import copy
from itertools import pairwise

import pytest
import torch
from optim_parts import pause_after, same
from parts import Memory, batches, trainer
from torch import nn
from torch.nn import functional as F

from engine_core import Callback, Engine, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError
from engine_core.time import Timestamp
from optim_plugin import LayerFreezing, freeze_layers, freezing_schedule, start_average, trainable_layers
from optim_plugin.freezing import count_frozen


@pytest.mark.parametrize("function", [start_average, trainable_layers, lambda model: freeze_layers(model, 0.5)])
def test_anything_but_a_model_is_refused(function):
    for model in (None, nn.Linear):
        with pytest.raises(TypeError, match=f"^model: {type(model).__name__} is not a torch.nn.Module$"):
            function(model)


def make_mixed_net():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 3)
    )


def frozen_of(model):
    return [name for name, parameter in model.named_parameters() if not parameter.requires_grad]


def test_the_schedule_is_linear_from_start_to_level_at_the_end():
    """The published form: level * (done - start) / (1 - start) after start, else 0."""
    done = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    expected = [0.0, 0.0, 0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75]
    assert [freezing_schedule(at, start=0.4, level=0.75) for at in done] == pytest.approx(expected)
    assert freezing_schedule(1.5, start=0.4, level=0.75) == 0.75


@pytest.mark.parametrize(
    ("fraction", "layers", "count"),
    [(0.0, 4, 0), (0.24, 4, 0), (0.25, 4, 1), (0.99, 4, 3), (1.0, 4, 3), (0.29, 100, 29), (1.0, 1, 0), (1.0, 0, 0)],
)
def test_this_many_are_frozen_and_never_the_last(fraction, layers, count):
    assert count_frozen(fraction, layers) == count


def test_layers_are_frozen_from_the_front():
    model = make_mixed_net()
    assert trainable_layers(model) == ["0", "1", "3.0", "4"]
    assert freeze_layers(model, 0.5) == ["0", "1"]
    assert frozen_of(model) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_fraction_that_grows_is_of_the_layers_at_the_beginning():
    model = make_mixed_net()
    layers = trainable_layers(model)
    counts = [len(freeze_layers(model, fraction, layers)) for fraction in (0.25, 0.5, 0.75, 1.0)]
    assert counts == [1, 2, 3, 3]
    assert trainable_layers(model) == ["4"]


def test_optimizers_leave_frozen_weights_bit_equal():
    """Momentum and weight decay don't affect them, although there is state from earlier steps."""
    model = make_mixed_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for step in range(6):
        optimizer.zero_grad(set_to_none=False)  # zeros would be enough for a step of momentum
        model(torch.randn(8, 4)).square().mean().backward()
        if step == 3:
            assert freeze_layers(model, 0.5) == ["0", "1"]
            before = copy.deepcopy(model.state_dict())
        optimizer.step()
    now = dict(model.named_parameters())
    assert all(torch.equal(before[name], now[name]) for name in ("0.weight", "0.bias", "1.weight", "1.bias"))
    assert not torch.equal(before["3.0.weight"], now["3.0.weight"])


def test_a_shared_parameter_is_frozen_with_the_last_of_its_users():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    model[2].weight = model[0].weight
    layers = trainable_layers(model)
    assert freeze_layers(model, 0.5, layers) == ["0", "1"]
    assert frozen_of(model) == ["0.bias", "1.weight", "1.bias"]
    freeze_layers(model, 0.75, layers)
    assert frozen_of(model) == ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias"]


def test_a_module_in_two_places_counts_at_the_last():
    shared = nn.Linear(3, 3)
    assert trainable_layers(nn.Sequential(shared, nn.Linear(3, 3), shared)) == ["1", "2"]


def test_what_the_user_froze_stays_and_does_not_count():
    model = make_mixed_net()
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    model[1].bias.grad = torch.ones(6)
    assert trainable_layers(model) == ["1", "3.0", "4"]
    assert freeze_layers(model, 0.34) == ["1"]
    assert model[1].bias.grad is not None
    assert frozen_of(model) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_parameters_of_the_model_itself_are_its_first_layer():
    class Prompted(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(2, 2)
            self.prompt = nn.Parameter(torch.zeros(2))

    assert trainable_layers(Prompted()) == ["", "body"]


def test_a_compiled_model_has_the_layers_of_the_original():
    compiled = torch.compile(nn.DataParallel(make_mixed_net()), backend="eager")
    assert freeze_layers(compiled, 0.5) == ["0", "1"]


def test_layers_after_the_last_with_a_gradient_do_not_count():
    """They are not part of the loss; one without a gradient before that may be a branch that was not taken."""
    model = make_mixed_net()
    model[1](model[0](torch.ones(2, 4))).sum().backward()
    model[0].zero_grad()
    assert trainable_layers(model) == ["0", "1"]
    assert freeze_layers(model, 1.0) == ["0"]


@pytest.mark.parametrize("arguments", [{"start": 1.0}, {"start": -1}, {"level": 0}, {"level": 2}, {"done": -1}])
def test_an_impossible_schedule_is_refused(arguments):
    for use in (lambda **given: freezing_schedule(**{"done": 2.0, **given}), LayerFreezing)[
        : 2 - ("done" in arguments)
    ]:
        with pytest.raises(ValueError, match=f"{next(iter(arguments))}="):
            use(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-0.1,), "fraction="), ((float("nan"),), "fraction="), ((0.5, ["0", "head"]), "'head' is not a module")],
)
def test_anything_but_a_fraction_of_layers_of_the_model_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        freeze_layers(make_mixed_net(), *arguments)


def make_net():
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 3))


class Recorder(Callback):
    """Keeps the weights after each batch, and how many layers were frozen in it."""

    def __init__(self):
        self.weights = []
        self.frozen = []

    def batch_end(self, state, logger):
        self.weights.append([layer.weight.detach().clone() for layer in state.model])
        self.frozen.append(sum(not layer.weight.requires_grad for layer in state.model))


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


DATA = batches(8, 8, 8, 8, 8)


def make_trainer(algorithms, *callbacks, model=None, data=DATA, **settings):
    """Return one of 20 batches."""
    model = model or make_net()
    given = {"algorithms": algorithms, "callbacks": callbacks, "optimizers": make_optimizer(model), **settings}
    return trainer(data, model, max_duration="4ep", seed=1, **given)


HALF = [0] * 12 + [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("start", "level", "frozen"),
    [
        (0.5, 1.0, HALF),
        (0.0, 1.0, [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4),
        (0.5, 0.5, [0] * 14 + [1] * 4 + [2] * 2),
        (0.95, 1.0, [0] * 20),
    ],
)
def test_layers_are_frozen_by_the_schedule(start, level, frozen):
    """Of 5 layers in 20 batches: floor(5 * level * (batch / 20 - start) / (1 - start)), the last never."""
    recorder = Recorder()
    with make_trainer(LayerFreezing(start, level), recorder) as run:
        run.fit()
    assert recorder.frozen == frozen


@pytest.mark.parametrize("names", [[], ["sam"], ["gradient_penalty"], ["sam", "gradient_penalty", "ema"]], ids=" ".join)
def test_frozen_weights_are_bit_equal_to_the_end_and_the_others_keep_training_beside_others_too(names):
    recorder = Recorder()
    with make_trainer([*names, LayerFreezing()], recorder, eval_dataloader=batches(8)) as run:
        run.fit()
    assert recorder.frozen == HALF
    for layer, at in enumerate([12, 14, 16, 18, 20]):
        moves = [not torch.equal(one[layer], other[layer]) for one, other in pairwise(recorder.weights)]
        assert moves == [True] * (at - 1) + [False] * (20 - at)
    assert all(step[4].isfinite().all() for step in recorder.weights)


def test_a_second_fit_unfreezes_nothing_and_each_change_is_logged_once():
    recorder, destination = Recorder(), Memory()
    with make_trainer(LayerFreezing(), recorder, loggers=[destination]) as run:
        run.fit()
        assert run.engine.members[0].finished
        with pytest.warns(UserWarning, match="goes past the max_duration"):
            run.fit("4ep")
    assert recorder.frozen == HALF + [4] * 20
    assert destination.values("layer_freezing/frozen") == [(12, 1), (14, 2), (16, 3), (18, 4)]


def test_a_run_without_a_model_is_refused():
    state = State(max_duration="2ba", timestamp=Timestamp(batch=1))
    with pytest.raises(ArgumentError, match="give State the model"):
        LayerFreezing(start=0).apply(Event.BATCH_START, state, Logger())


def test_what_was_loaded_waits_for_a_batch_to_freeze_before():
    """A run that resumes at its last batch comes to a checkpoint first, where nothing has a gradient."""
    rest, destination = LayerFreezing(), Memory()
    with make_trainer(rest, loggers=[destination]) as after:
        rest.load_state_dict({"frozen": 4, "layers": [str(i) for i in range(5)]})
        after.state.timestamp = after.state.timestamp._replace(batch=20, epoch=4)
        after.engine.run_event("batch_checkpoint")
    assert destination.values("layer_freezing/frozen") == []
    assert rest.state_dict()["frozen"] == 4


def test_it_asks_for_parameters_without_a_gradient():
    assert LayerFreezing().find_unused_parameters
    assert not LayerFreezing().backwards_create_graph


def test_what_it_cannot_know_is_refused():
    model = make_net()
    with pytest.raises(ValueError, match="max_duration is not known"):
        LayerFreezing().validate(State(model=model))
    optimizers = [make_optimizer(layer) for layer in model]
    state = State(model=model, max_duration="1ep", optimizers=optimizers, precision="amp_fp16")
    with pytest.raises(ValueError, match="several optimizers under amp_fp16"):
        LayerFreezing().validate(state)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"frozen": 1}, "the state of layer_freezing has no 'layers'"),
        ({"frozen": "a", "layers": 3}, "layers=3 in the state of layer_freezing has to be a list"),
        ({"frozen": 1, "layers": [1]}, r"layers=\[1\] in the state"),
        ({"frozen": "a", "layers": ["0"]}, "frozen='a' .*whole number: .* in the state of layer_freezing"),
        ({"frozen": -1, "layers": ["0"]}, "frozen=-1"),
    ],
)
def test_a_state_that_cannot_have_been_saved_is_refused_and_nothing_taken(state, message):
    algorithm = LayerFreezing()
    algorithm.load_state_dict({"frozen": 1, "layers": ["0", "1"]})
    with pytest.raises((ValueError, TypeError), match=message):
        algorithm.load_state_dict(state)
    assert algorithm.state_dict() == {"frozen": 1, "layers": ["0", "1"]}


NET_LAYERS = [f"net.{i}" for i in range(5)]


class WithUnused(nn.Module):
    """Defines a last layer that is not part of the loss."""

    def __init__(self):
        super().__init__()
        self.net, self.unused = make_net(), nn.Linear(4, 4)

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("at", [9, 11, 12, 13, 17])
def test_a_resumed_run_counts_freezes_logs_and_trains_as_the_uninterrupted_one(tmp_path, at):
    """Layers count after batch 11; the checkpoint's model has all trainable again, and there are no gradients yet."""

    def train(folder, *callbacks, **settings):
        algorithm, logged, saver = LayerFreezing(), Memory(), CheckpointSaver(tmp_path / folder, interval="100ep")
        how = {"model": WithUnused(), "loggers": [logged], **settings}
        with make_trainer(algorithm, saver, *callbacks, **how) as run:
            run.fit()
        return algorithm.state_dict(), run.state.model.state_dict(), logged.values("layer_freezing/frozen")

    whole = train("whole")
    first = train("parts", pause_after(at))
    rest = train("parts", load_path=tmp_path / "parts")
    assert first[0] == ({} if at < 11 else {"frozen": max(0, (at - 11) // 2), "layers": NET_LAYERS})
    assert rest[0] == whole[0] == {"frozen": 4, "layers": NET_LAYERS}
    assert same(rest[1], whole[1])
    assert first[2] + rest[2] == whole[2] == [(12, 1), (14, 2), (16, 3), (18, 4)]


def test_with_a_loader_without_length_layers_count_where_an_epoch_ends():
    """Only there `start` passes, so a run that is saved there has to know its layers."""
    algorithm = LayerFreezing(0.4)
    with make_trainer(algorithm, data=iter_of(DATA)) as run:
        run.fit("2ep")
    assert algorithm.state_dict() == {"frozen": 0, "layers": [str(i) for i in range(5)]}


def iter_of(batches):
    """Return a loader of these batches that does not know how many they are."""
    return type("Unsized", (), {"__iter__": lambda self: iter(batches)})()


class SometimesShort(nn.Module):
    """Leaves out its last layers in some steps, as dropped blocks do."""

    def __init__(self, length_of):
        super().__init__()
        self.net, self.length_of, self.step = make_net(), length_of, 0

    def forward(self, x):
        self.step += 1
        return self.net[: self.length_of(self.step)](x)[:, :3]


@pytest.mark.parametrize(
    ("length_of", "layers", "frozen"),
    [
        (lambda step: 1 if step == 11 else 5, 5, 4),  # the step after which they are counted
        (lambda step: min(5, step - 10) if step > 11 else 5 if step < 11 else 1, 5, 4),  # one more in each step
        (lambda step: 5 if step < 11 else 2, 2, 1),
    ],
    ids=["in one step not", "one after the other", "no more"],
)
def test_a_layer_that_had_no_gradient_counts_from_its_next_one_on(length_of, layers, frozen):
    algorithm = LayerFreezing()
    with make_trainer(algorithm, model=SometimesShort(length_of)) as run:
        run.fit("17ba" if layers == 5 else "20ba")
        assert algorithm.state_dict()["layers"] == NET_LAYERS[:layers]
        if layers == 5:
            run.state.model.length_of = lambda step: 5
            run.fit()
    assert algorithm.state_dict() == {"frozen": frozen, "layers": NET_LAYERS[:layers]}


@pytest.mark.parametrize(
    ("checkpoints", "resets", "layers"),
    [(False, False, NET_LAYERS), (True, False, NET_LAYERS), (True, True, [*NET_LAYERS, "unused"])],
)
def test_a_custom_loop_counts_by_the_gradients_it_leaves(checkpoints, resets, layers):
    model, algorithm = WithUnused(), LayerFreezing(start=0)
    state = State(model=model, algorithms=[algorithm], max_duration="6ba", seed=1)
    with Engine(state, Logger()) as engine:
        for x, y in DATA:
            engine.run_event(Event.BATCH_START)
            F.cross_entropy(model(x), y).backward()
            state.timestamp = state.timestamp.to_next_batch(samples=8)
            if resets:
                model.zero_grad()
            if checkpoints:
                engine.run_event(Event.BATCH_CHECKPOINT)
    assert algorithm.state_dict() == {"frozen": len(layers) * 4 // 6, "layers": layers}
