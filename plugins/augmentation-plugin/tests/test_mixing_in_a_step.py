"""MixUp and CutMix in a run: what is seen and restored at each event, what is drawn, and both beside others."""

import itertools

import pytest
import torch
from augmentation_parts import BOTH, FORMS
from parts import at
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import CutMix, MixUp, cutmix_batch, mixup_batch
from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, Objective, State, Trainer
from engine_core.errors import EngineError

ROWS = 6
ONE_HOT = torch.eye(ROWS)
IMAGES = ONE_HOT.view(ROWS, ROWS, 1, 1).expand(ROWS, ROWS, 8, 8).contiguous()
CLASSES = torch.arange(ROWS)
"""Row i is 1 in channel i alone and of class i, so the mean of what the model sees is the target it should see."""


class Recorder(nn.Module):
    """A net that remembers the means of the channels of its inputs, and its targets where it is the loss function."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(ROWS, ROWS)
        self.seen = []
        self.targets = []

    def forward(self, images):
        self.seen.append(images.mean((2, 3)))
        return self.linear(self.seen[-1])

    def loss_fn(self, outputs, targets):
        self.targets.append(targets)
        return F.cross_entropy(outputs, targets)


def fit(algorithms, batches=None, **options):
    model = Recorder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = Objective(model.loss_fn, check=False)  # the law would be measured on further forwards
    options = {"max_duration": "1ep", "seed": 4, "objective": objective, **options}
    with Trainer(model, batches or [(IMAGES, CLASSES)], optimizers=optimizer, algorithms=algorithms, **options) as run:
        run.fit()
    return model


@pytest.fixture(params=[MixUp, CutMix])
def kind(request):
    return request.param


def test_the_targets_are_mixed_as_the_inputs_are_and_each_batch_has_its_own_lambda_and_pairing(kind):
    model = fit(kind(alpha=1.0), [(IMAGES, CLASSES)] * 6)
    for seen, targets in zip(model.seen, model.targets, strict=True):
        torch.testing.assert_close(targets, seen)
        assert not torch.equal(seen, ONE_HOT)
    assert len({tuple(seen.flatten().tolist()) for seen in model.seen}) == 6


class Again(Algorithm):
    """Computes the gradients of each batch twice, as SAM does."""

    metadata = AlgorithmMetadata(events=("after_train_batch",), before=("@augmentation",), writes=("model",))

    def match(self, event, state):
        return event is Event.AFTER_TRAIN_BATCH

    def apply(self, event, state, logger):
        assert state.loop.closure is not None
        state.loop.closure()


@pytest.mark.parametrize(("interpolate_loss", "microbatch_size"), [(False, None), (True, 4)])
def test_a_second_forward_in_a_batch_sees_the_same_mix(kind, microbatch_size, interpolate_loss):
    mixing = kind(alpha=1.0, interpolate_loss=interpolate_loss)
    model = fit([mixing, Again()], [(IMAGES, CLASSES)] * 2, microbatch_size=microbatch_size)
    each = 1 if microbatch_size is None else 2
    batches = [model.seen[: 2 * each], model.seen[2 * each :]]
    for seen in batches:
        assert all(torch.equal(one, again) for one, again in zip(seen[:each], seen[each:], strict=True))
    assert not torch.equal(batches[0][0], batches[1][0])


def test_evaluation_sees_nothing_of_it(kind):
    model = fit(kind(alpha=1.0), eval_dataloader=[(IMAGES, CLASSES)])
    assert torch.equal(model.seen[-1], ONE_HOT)
    assert torch.equal(model.targets[-1], CLASSES)


EVENTS = ("after_forward", "before_loss", "after_loss")
BATCH = torch.rand(4, 3, 8, 8), torch.arange(4)
FORWARD, LOSS = ("before_forward", "after_forward"), ("before_loss", "after_loss")


def own(algorithm, batch=BATCH):
    """Return an engine for a hand-written loop."""
    state = State(model=nn.Identity(), algorithms=[algorithm], loss_fn=F.cross_entropy, seed=1, batch=batch)
    state.outputs = torch.zeros(len(batch[1]), len(batch[1]))
    return state, Engine(state, Logger())


def fire(engine, *events):
    for event in events:
        engine.run_event(event)
    return engine.state.batch


def test_the_batch_is_the_very_object_again_after_each_half(kind):
    copies = IMAGES.clone(), CLASSES.clone()
    with own(kind(1.0), batch := (IMAGES, CLASSES))[1] as engine:
        assert fire(engine, "before_train_batch", "before_loss") is batch  # no forward was mixed
        assert fire(engine, "after_loss") is batch
        assert not torch.equal(fire(engine, "before_forward")[0], IMAGES)
        assert fire(engine, "after_forward") is batch
        mixed = fire(engine, "before_loss")
        assert mixed[0] is IMAGES and mixed[1].shape == (ROWS, ROWS)
        assert fire(engine, "after_loss", "after_train_batch") is batch
    assert torch.equal(IMAGES, copies[0]) and torch.equal(CLASSES, copies[1])


def test_without_before_train_batch_each_forward_draws_for_itself(kind):
    seen = []
    with own(kind(1.0), (IMAGES, CLASSES))[1] as engine:
        for _ in range(4):
            seen.append(fire(engine, "before_forward")[0].mean((2, 3)))
            fire(engine, "after_forward")
            torch.testing.assert_close(fire(engine, "before_loss")[1], seen[-1])
            fire(engine, "after_loss")
    assert len({tuple(means.flatten().tolist()) for means in seen}) == 4


@FORMS
def test_rows_that_go_between_forward_and_loss_are_an_error(kind, interpolate_loss):
    state, engine = own(kind(1.0, interpolate_loss), (IMAGES, CLASSES))
    with engine:
        fire(engine, "before_train_batch", *FORWARD)
        state.batch = (IMAGES[:3], CLASSES[:3])
        with pytest.raises(EngineError, match="mixed 6 rows, and the batch of the loss has 3"):
            fire(engine, "before_loss")


@FORMS
@pytest.mark.parametrize(
    "step", [FORWARD, ("before_train_batch", *FORWARD, "after_train_batch")], ids=["forward", "train batch"]
)
def test_a_loop_that_fires_no_pair_of_the_loss_gets_an_error_in_its_second_step(kind, interpolate_loss, step):
    with own(kind(interpolate_loss=interpolate_loss))[1] as engine:
        fire(engine, *step)
        with pytest.raises(EngineError, match="never saw BEFORE_LOSS: the loop has to fire both pairs"):
            fire(engine, step[0])


@BOTH
def test_half_a_pair_of_the_loss_is_not_enough(kind):
    with own(kind())[1] as engine:
        fire(engine, *FORWARD)
        with pytest.raises(EngineError, match="never saw BEFORE_LOSS"):
            fire(engine, "after_loss")
    with own(kind(interpolate_loss=True))[1] as engine:
        fire(engine, *FORWARD, "before_loss")
        with pytest.raises(EngineError, match="never saw AFTER_LOSS"):
            fire(engine, "before_forward")


class Failing(nn.Module):
    """A net, loss function and callback that raises once, at a chosen place."""

    def __init__(self, where):
        super().__init__()
        self.linear, self.where = nn.Linear(3, 4), where

    def fail(self, where):
        if where == self.where:
            self.where = "nowhere"
            raise ZeroDivisionError

    def forward(self, images):
        self.fail("forward")
        return self.linear(images.mean((2, 3)))

    def loss_fn(self, outputs, targets):
        self.fail("loss")
        return F.cross_entropy(outputs, targets)


@pytest.mark.parametrize(("kind", "interpolate_loss", "microbatch_size"), [(MixUp, False, 2), (CutMix, True, None)])
@pytest.mark.parametrize("where", ["forward", "after_forward", "before_loss", "loss", "after_loss"])
def test_batch_and_loss_are_back_after_an_exception_wherever_it_was_and_training_continues(
    kind, where, interpolate_loss, microbatch_size
):
    model = Failing(where)
    with Trainer(
        model,
        [BATCH] * 3,
        max_duration="2ba",
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        objective=Objective(model.loss_fn, check=False),
        algorithms=kind(interpolate_loss=interpolate_loss),
        callbacks=[at(event, lambda state, event=event: model.fail(event)) for event in EVENTS],
        microbatch_size=microbatch_size,
    ) as trainer:
        trainer.state.loss = before = torch.tensor(3.0)
        with pytest.raises(ZeroDivisionError) as raised:
            trainer.fit()
        assert "could not undo" not in str(getattr(raised.value, "__notes__", []))
        assert trainer.state.batch is BATCH
        assert trainer.state.loss is before or where not in ("forward", "loss")
        trainer.fit("2ba")
    assert trainer.state.timestamp.batch == 2


@FORMS
@pytest.mark.parametrize(
    ("begun", "done"),
    [
        ([], ["before_forward"]),
        *((["before_train_batch"], done) for done in (["before_forward"], FORWARD, [*FORWARD, "before_loss"])),
    ],
)
def test_a_loop_that_restores_continues_after_an_exception(kind, begun, done, interpolate_loss):
    state, engine = own(kind(interpolate_loss=interpolate_loss))
    with engine:
        with pytest.raises(ZeroDivisionError), engine.restoring():
            fire(engine, *begun, *done)
            raise ZeroDivisionError
        assert state.batch is BATCH
        fire(engine, *begun, *FORWARD, *LOSS)


@BOTH
def test_in_a_handler_of_exceptions_nothing_is_blamed_and_all_is_mixed(kind):
    state, engine = own(kind(1.0))
    with engine:
        try:
            fire(engine, *FORWARD, "no event")
        except ValueError:
            fire(engine, *FORWARD, "before_loss")
            assert state.batch[1].shape == (4, 4)
            fire(engine, "after_loss")


FIVE = torch.eye(5).view(5, 5, 1, 1).expand(5, 5, 16, 16).contiguous()


def test_the_two_draw_apart():
    mixup, cutmix = MixUp(1.0), CutMix(1.0)
    with Engine(State(model=nn.Identity(), algorithms=[mixup, cutmix], seed=1), Logger()) as engine:
        engine.run_event("before_train_batch")
        assert mixup._draw != cutmix._draw


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, where it imports the compiler
def test_a_compiled_step_draws_again_each_time():
    def draws(function):
        generator = torch.Generator().manual_seed(3)
        mixed = [function(FIVE, torch.arange(5), generator=generator) for _ in range(3)]
        return [(float(lam), paired.tolist()) for _, paired, lam in mixed]

    compiled = draws(torch.compile(mixup_batch, backend="eager"))
    assert compiled == draws(mixup_batch)
    assert compiled[0] != compiled[1] != compiled[2]


@pytest.mark.parametrize("mix", [mixup_batch, cutmix_batch])
def test_a_seed_is_not_a_generator(mix):
    with pytest.raises(TypeError, match=r"generator=3 \(int\) .*torch.Generator\(\).manual_seed\(3\)"):
        mix(FIVE, torch.arange(5), generator=3)


def test_a_default_device_is_not_where_pairs_are_drawn():
    torch.set_default_device("meta")
    try:
        mixed = mixup_batch(FIVE, torch.arange(5))
    finally:
        torch.set_default_device(None)
    assert mixed.input.device.type == "cpu"


class Smooth(Algorithm):
    """Smooths classes around whatever mixes targets, as label_smoothing does."""

    metadata = AlgorithmMetadata(
        events=("before_loss", "after_loss"), tags=("target_smoothing",), around=("@target_mixing",), writes=("batch",)
    )
    batch = None

    def match(self, event, state):
        return event in self.metadata.events

    def apply(self, event, state, logger):
        if event is Event.BEFORE_LOSS:
            self.batch = state.batch
            state.batch_set_item(1, 0.8 * F.one_hot(state.batch[1], ROWS) + 0.2 / ROWS)
        else:
            state.batch, self.batch = self.batch, None


class Pair:
    """Trains on rows that are 1 in their own channel: the mean of the mixed images is the target they should have."""

    def __init__(self, algorithms, smoothed=False):
        self.losses = []
        self.expected = []
        self.smoothed = smoothed
        self.model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ROWS, ROWS))
        with torch.no_grad():
            self.model[2].weight.copy_(torch.arange(ROWS**2).view(ROWS, ROWS).sin())
            self.model[2].bias.zero_()
        self.model[1].register_forward_hook(lambda _, __, means: setattr(self, "means", means))
        batches = [(IMAGES, torch.arange(ROWS))] * 4
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        options = {"loss_fn": F.cross_entropy, "optimizers": optimizer, "callbacks": self, "seed": 5}
        with Trainer(self.model, batches, algorithms=algorithms, **options) as trainer:
            trainer.fit("1ep")

    def after_loss(self, state, logger):
        targets = 0.8 * self.means + 0.2 / ROWS if self.smoothed else self.means
        self.losses.append(state.loss.detach())
        self.expected.append(F.cross_entropy(state.outputs, targets).detach())
        assert torch.equal(state.batch[1], torch.arange(ROWS))


PAIRS = [(MixUp(1.0), CutMix()), (MixUp(1.0), CutMix(1.0, True)), (MixUp(1.0, True), CutMix())]


@pytest.mark.parametrize("pair", PAIRS, ids=["targets", "mixup targets, cutmix loss", "mixup loss, cutmix targets"])
def test_together_they_learn_of_each_image_by_its_share(pair):
    runs = [Pair(list(order)) for order in itertools.permutations(pair)]
    for run in runs:
        torch.testing.assert_close(run.losses, run.expected)
    assert all(torch.equal(*weights) for weights in zip(*(run.model.parameters() for run in runs), strict=True))


@pytest.mark.parametrize("mixing", [MixUp(1.0), CutMix(1.0, True)])
def test_beside_smoothing_the_paired_targets_are_smoothed_too(mixing):
    for order in ([mixing, Smooth()], [Smooth(), mixing]):
        run = Pair(order, smoothed=True)
        torch.testing.assert_close(run.losses, run.expected)


def test_two_that_interpolate_the_loss_cause_one_warning():
    with pytest.warns(UserWarning, match="interpolate") as caught:  # each is recorded, also at one line
        run = Pair([MixUp(1.0, True), CutMix(1.0, True)])
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith("MixUp and CutMix all interpolate the loss") and message.endswith("targets instead")
    assert not torch.allclose(torch.stack(run.losses), torch.stack(run.expected))


def test_only_the_instance_that_interpolates_says_so():
    for kind in (MixUp, CutMix):
        assert "loss_interpolation" in kind(interpolate_loss=True).metadata.tags
        assert kind(interpolate_loss=True).metadata.writes == ("batch", "loss")
        assert "loss_interpolation" not in kind().metadata.tags
        assert kind().metadata.writes == kind.metadata.writes == ("batch",)
