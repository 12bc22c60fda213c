"""The two sides of a comparison, the hand-written loop and the Trainer: built alike, timed in turns, and compared."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import nets
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, Trainer

STEPS = 4  # in a block, the unit of timing
WARM = 2  # blocks that are not timed
PLACEMENTS = 4  # how often all sides are rebuilt: where tensors lie in memory makes half a percent
ROWS = {nets.resnet: 64, nets.transformer: 32}
SHAPES = {nets.resnet: (3, 32, 32), nets.transformer: (32, 64)}

Generators = Callable[[str], torch.Generator]


@dataclass
class Hand:
    """What a hand-written loop works with.

    Args:
        total: the steps of the whole training, for schedules.
        generator: returns a generator that draws what that of the named algorithm draws.
        average: where a loop leaves its averaged weights by name, for comparison.
    """

    model: nn.Module
    batches: list[tuple[torch.Tensor, torch.Tensor]]
    total: int
    generator: Generators
    average: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)


Loop = Callable[[], None]


def plain(hand: Hand) -> Loop:
    """Return the loop without any algorithm; a loop runs `STEPS` steps."""
    model, optimizer, batches = hand.model, hand.optimizer, hand.batches

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()

    return run


def plain_bf16(hand: Hand) -> Loop:
    """Return the same loop in mixed precision."""
    model, optimizer, batches = hand.model, hand.optimizer, hand.batches

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()

    return run


@dataclass(frozen=True)
class Case:
    """An algorithm, and its mathematics by hand.

    Args:
        algorithms: makes what the Trainer gets.
        hand: makes the hand-written loop.
        hand_net: makes the hand-written model, with its parameters in the order that surgery leaves.
        plain: the hand-written loop without the algorithm.
        tolerance: how much weights may differ at the end; 0: they have to be bit-equal.
    """

    algorithms: Callable[[], list[Algorithm]]
    hand: Callable[[Hand], Loop] = plain
    net: Callable[..., nn.Module] = nets.resnet
    hand_net: Callable[[Generators], nn.Module] | None = None
    plain: Callable[[Hand], Loop] = plain
    precision: str = "fp32"
    tolerance: float = 0.0


@dataclass(frozen=True)
class Result:
    """What a case costs, in CPU time.

    Args:
        hand_ms, trainer_ms: medians of a step with the algorithm.
        ratio, best: of these two: the median of the blocks' ratios, and the ratio of the shortest blocks.
        engine: the median ratio of Trainer to loop without the algorithm.
        own_us: what a step of the Trainer takes more than the hand-written one, less what the engine takes by itself.
        apart: the largest difference of a weight at the end; 0 if all are bit-equal.
    """

    hand_ms: float
    trainer_ms: float
    ratio: float
    best: float
    engine: float
    own_us: float
    apart: float


Blocks = dict[str, list[float]]


def compare(case: Case, rounds: int) -> Result:
    """Return what an algorithm costs compared with its mathematics by hand.

    Raises:
        ValueError: if the two did not compute the same.
    """
    seconds: Blocks = {}
    apart = 0.0
    for _ in range(PLACEMENTS):
        measured, distance = measure(case, math.ceil(rounds / PLACEMENTS))
        apart = max(apart, distance)
        for name, blocks in measured.items():
            seconds.setdefault(name, []).extend(blocks)
    rows = list(zip(*(seconds[name] for name in ("hand", "trainer", "plain hand", "plain trainer")), strict=True))
    own = statistics.median((t - h) - (pt - ph) for h, t, ph, pt in rows)
    return Result(
        hand_ms=statistics.median(seconds["hand"]) / STEPS * 1e3,
        trainer_ms=statistics.median(seconds["trainer"]) / STEPS * 1e3,
        ratio=statistics.median(t / h for h, t, _, _ in rows),
        best=min(seconds["trainer"]) / min(seconds["hand"]),
        engine=statistics.median(pt / ph for _, _, ph, pt in rows),
        own_us=own / STEPS * 1e6,
        apart=apart,
    )


def measure(case: Case, rounds: int) -> tuple[Blocks, float]:
    """Build all sides, and return the CPU seconds of their blocks and how far apart their weights end."""
    total = (WARM + rounds) * STEPS
    batches = make_batches(case.net)
    trainer, run_trainer = trainer_side(case, batches, total, case.algorithms())
    hand, run_hand = hand_side(case, trainer, batches, total, with_algorithm=True)
    plain_trainer, run_plain_trainer = trainer_side(case, batches, total, [])
    plain_hand, run_plain_hand = hand_side(case, plain_trainer, batches, total, with_algorithm=False)
    runs = {
        "hand": run_hand,
        "trainer": run_trainer,
        "plain hand": run_plain_hand,
        "plain trainer": run_plain_trainer,
    }
    seconds = in_turns(runs, rounds)
    apart = difference(hand, trainer)
    if not apart <= case.tolerance or difference(plain_hand, plain_trainer):
        raise ValueError(f"the two sides end with different weights, {apart} apart: they don't compute the same")
    return seconds, apart


def make_batches(net: Callable[..., nn.Module]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return random batches for a block."""
    rows = ROWS[net]
    return [(torch.randn(rows, *SHAPES[net]), torch.randint(nets.CLASSES, (rows,))) for _ in range(STEPS)]


def trainer_side(case: Case, batches: Any, total: int, algorithms: list[Algorithm]) -> tuple[Trainer, Loop]:
    """Return a Trainer, and a block of its `fit`."""
    torch.manual_seed(0)
    model = case.net()
    trainer = Trainer(
        model,
        batches,
        max_duration=f"{total}ba",
        loss_fn=F.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9),
        algorithms=algorithms,
        precision=case.precision,
        device="cpu",
        seed=1,
        progress_bar=False,
    )
    return trainer, lambda: trainer.fit(f"{STEPS}ba")


def hand_side(case: Case, trainer: Trainer, batches: Any, total: int, *, with_algorithm: bool) -> tuple[Hand, Loop]:
    """Return the hand-written loop on its own model, with the current weights of the Trainer's."""

    def generator(name: str) -> torch.Generator:
        return torch.Generator().manual_seed(trainer.state.derive_seed(name))

    model = case.hand_net(generator) if with_algorithm and case.hand_net is not None else case.net()
    with torch.no_grad():
        for own, given in zip(weights_of(model), weights_of(trainer.state.model), strict=True):
            own.copy_(given)
    hand = Hand(model, batches, total, generator)
    return hand, (case.hand if with_algorithm else case.plain)(hand)


def weights_of(model: Any) -> list[torch.Tensor]:
    """Return parameters and saved buffers, in order."""
    return list(model.state_dict().values())


def difference(hand: Hand, trainer: Trainer) -> float:
    """Return the largest difference between the weights of the two sides, including averaged ones."""
    pairs = list(zip(weights_of(hand.model), weights_of(trainer.state.model), strict=True))
    for algorithm in trainer.state.algorithms:
        if hasattr(algorithm, "averaged_state_dict") and hand.average:
            averages = algorithm.averaged_state_dict()
            pairs += [(hand.average[name], average) for name, average in averages.items()]
    return max(float((a - b).abs().max()) for a, b in pairs)


def in_turns(runs: dict[str, Loop], rounds: int) -> Blocks:
    """Return the CPU seconds of each run's blocks, in turns whose order rotates and alternates direction."""
    seconds: Blocks = {name: [] for name in runs}
    names = list(runs)
    gc.collect()
    gc.disable()
    for turn in range(-WARM, rounds):
        for place in range(len(names)):
            name = names[(turn + (place if turn % 2 else -place)) % len(names)]
            started = time.process_time()
            runs[name]()
            if turn >= 0:
                seconds[name].append(time.process_time() - started)
    gc.enable()
    return seconds
