"""What MixUp and CutMix draw in a run and from what was saved; both together, and beside smoothed targets."""

import itertools
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import CutMix, MixUp, cutmix_batch, mixup_batch
from augmentation_plugin.mixing import Mixing
from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, State, Trainer
from engine_core.errors import ArgumentError

FIVE = torch.eye(5).view(5, 5, 1, 1).expand(5, 5, 16, 16).contiguous()


def mixes(algorithm: Any, steps: int, seed: int = 1, saved: Any = None, keep: Any = None) -> list[list[float]]:
    """Return the images after some steps; put what is saved after each into `keep`."""
    state = State(model=nn.Identity(), algorithms=[algorithm], seed=seed)
    seen = []
    with Engine(state, Logger()) as engine:
        engine.run_event("init")
        if saved is not None:
            algorithm.load_state_dict(saved)
        for _ in range(steps):
            state.batch = (FIVE, torch.arange(5))
            for event in ("before_train_batch", "before_forward"):
                engine.run_event(event)
            seen.append(state.batch[0].mean((2, 3)).flatten().tolist())
            state.outputs = torch.zeros(5, 5)
            for event in ("after_forward", "before_loss", "after_loss", "after_train_batch"):
                engine.run_event(event)
            if keep is not None:
                keep.append(algorithm.state_dict())
    return seen


@pytest.fixture(params=[MixUp, CutMix])
def kind(request: pytest.FixtureRequest) -> type[Mixing]:
    return request.param


def test_a_resumed_run_draws_as_the_uninterrupted_one(kind):
    saved: list[Any] = []
    whole = mixes(kind(1.0), 6, keep=saved)
    assert mixes(kind(1.0), 4, saved=saved[1]) == whole[2:]
    assert mixes(kind(1.0), 1, saved=saved[4]) == whole[5:]


def test_the_two_draw_apart():
    mixup, cutmix = MixUp(1.0), CutMix(1.0)
    with Engine(State(model=nn.Identity(), algorithms=[mixup, cutmix], seed=1), Logger()) as engine:
        engine.run_event("before_train_batch")
        assert mixup._draw != cutmix._draw


def test_draws_follow_the_seed_of_the_run_alone(kind):
    used = kind(1.0)
    first = mixes(used, 4)
    torch.manual_seed(99)
    random.seed(99)
    assert mixes(used, 4) == mixes(kind(1.0), 4) == first
    assert mixes(kind(1.0), 4, seed=2) != first


def test_a_foreign_state_is_refused(kind):
    with pytest.raises(ArgumentError, match=f"the state of {kind.metadata.name} has no 'generator'"):
        kind().load_state_dict({"lambda": 0.5})


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, where it imports the compiler
def test_a_compiled_step_draws_again_each_time():
    def draws(function: Any) -> list[Any]:
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


ROWS = 6
IMAGES = torch.eye(ROWS).view(ROWS, ROWS, 1, 1).expand(ROWS, ROWS, 8, 8).contiguous()


class Smooth(Algorithm):
    """Smooths classes around whatever mixes targets, as label_smoothing does."""

    metadata = AlgorithmMetadata(
        events=("before_loss", "after_loss"), tags=("target_smoothing",), around=("@target_mixing",), writes=("batch",)
    )
    batch: Any = None

    def match(self, event: Event, state: State) -> bool:
        return event in self.metadata.events

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        if event is Event.BEFORE_LOSS:
            self.batch = state.batch
            state.batch_set_item(1, 0.8 * F.one_hot(state.batch[1], ROWS) + 0.2 / ROWS)
        else:
            state.batch, self.batch = self.batch, None


class Pair:
    """Trains on rows that are 1 in their own channel: the mean of the mixed images is the target they should have."""

    def __init__(self, algorithms: Any, smoothed: bool = False) -> None:
        self.losses: list[torch.Tensor] = []
        self.expected: list[torch.Tensor] = []
        self.smoothed = smoothed
        self.model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ROWS, ROWS))
        with torch.no_grad():
            self.model[2].weight.copy_(torch.arange(ROWS**2).view(ROWS, ROWS).sin())
            self.model[2].bias.zero_()
        self.model[1].register_forward_hook(lambda _, __, means: setattr(self, "means", means))
        batches = [(IMAGES, torch.arange(ROWS))] * 4
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        options: Any = {"loss_fn": F.cross_entropy, "optimizers": optimizer, "callbacks": self, "seed": 5}
        with Trainer(self.model, batches, algorithms=algorithms, **options) as trainer:
            trainer.fit("1ep")

    def after_loss(self, state: State, logger: Any) -> None:
        targets = 0.8 * self.means + 0.2 / ROWS if self.smoothed else self.means
        self.losses.append(state.loss.detach())
        self.expected.append(F.cross_entropy(state.outputs, targets).detach())
        assert torch.equal(state.batch[1], torch.arange(ROWS))


FORMS = [(MixUp(1.0), CutMix()), (MixUp(1.0), CutMix(1.0, True)), (MixUp(1.0, True), CutMix())]


@pytest.mark.parametrize("pair", FORMS, ids=["targets", "mixup targets, cutmix loss", "mixup loss, cutmix targets"])
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


@pytest.mark.parametrize(
    ("pair", "outer"),
    [(FORMS[0], "MixUp"), (FORMS[1], "MixUp"), (FORMS[2], "CutMix")],
)
def test_the_metadata_decides_which_is_the_outer_one(pair, outer):
    for order in itertools.permutations(pair):
        with Engine(State(algorithms=list(order)), Logger()) as engine:
            first = {e: engine.explain(e)[0].algorithm for e in ("before_forward", "before_loss")}
            last = {e: engine.explain(e)[-1].algorithm for e in ("after_forward", "after_loss")}
        assert {*first.values(), *last.values()} == {outer}


def test_only_the_instance_that_interpolates_says_so():
    for kind in (MixUp, CutMix):
        assert "loss_interpolation" in kind(interpolate_loss=True).metadata.tags
        assert kind(interpolate_loss=True).metadata.writes == ("batch", "loss")
        assert "loss_interpolation" not in kind().metadata.tags
        assert kind().metadata.writes == kind.metadata.writes == ("batch",)
