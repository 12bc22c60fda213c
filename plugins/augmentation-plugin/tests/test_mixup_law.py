"""Mixed batches in microbatches and on two ranks: sums of the mixed losses of parts, by what they count in all."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import CutMix, MixUp, cutmix_batch, mix_losses, mixup_batch
from augmentation_plugin.mixing import Mixing
from engine_core import Batches, Callback, Logger, Loss, Objective, State, Trainer
from engine_core.errors import ArgumentError
from engine_core_author import ThreadRanks

WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.double)
SEED, FUNCTIONS = 3, {MixUp: mixup_batch, CutMix: cutmix_batch}
Batch = dict[str, torch.Tensor]


def tokens(outputs: torch.Tensor, targets: torch.Tensor) -> Loss:
    return Loss(F.cross_entropy(outputs, targets, reduction="sum"), (targets != -100).sum())


def dense_rows(outputs: torch.Tensor, targets: torch.Tensor) -> Loss:
    return Loss(F.cross_entropy(outputs, targets, reduction="sum"), len(targets))


def named(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"ce": F.cross_entropy(outputs, targets), "norm": outputs.square().sum(1).mean()}


class OwnObjective(Objective):
    """Has the loss in a method."""

    def loss(self, model: Any, outputs: Any, batch: Any) -> Loss:
        return tokens(outputs, batch["y"])


def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="sum")


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, WEIGHT, reduction="sum")


# The objective, the form of mixing, the targets, the sum of a part, and what it counts.
Y, IGNORED = torch.tensor([0, 1, 2, 2, 1, 1, 0]), torch.tensor([0, -100, 2, 2, -100, -100, 0])
CASES: dict[str, tuple[Any, bool, torch.Tensor, Callable[..., Any], Callable[..., Any]]] = {
    "cross entropy, dense": (nn.CrossEntropyLoss(), False, Y, summed, len),
    "a Loss of rows, dense": (dense_rows, False, Y, summed, len),
    "named parts, dense": (named, False, Y, lambda out, y: summed(out, y) + out.square().sum(), len),
    "ignored and weighted": (nn.CrossEntropyLoss(WEIGHT), True, IGNORED, weighted, lambda y: WEIGHT[y[y >= 0]].sum()),
    "a Loss of tokens": (tokens, True, IGNORED, summed, lambda y: (y >= 0).sum()),
    "an objective's own": (OwnObjective, True, IGNORED, summed, lambda y: (y >= 0).sum()),
    "a sum": (nn.CrossEntropyLoss(reduction="sum"), True, IGNORED, summed, lambda y: 0),
}


def make_net() -> nn.Sequential:
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 3)).double()
    for number, parameter in enumerate(net.parameters()):
        parameter.data = torch.arange(parameter.numel()).view_as(parameter).add(number).sin().double() / 2
    return net


class Parts(Callback):
    """Keeps the parts that a step was made of, as they are after the loss."""

    every_rank = True

    def __init__(self) -> None:
        self.seen: list[Batch] = []

    def after_loss(self, state: State, logger: Logger) -> None:
        self.seen.append(state.batch)


def step(
    one_step: Any, case: str, kind: type[Mixing], size: int | None, ranks: Any = None
) -> tuple[torch.Tensor, float, list[Batch]]:
    """Return the weights after one step, the loss, and the parts."""
    loss, interpolates, y, *_ = CASES[case]
    batch = {"y": y, "x": torch.arange(7 * 18.0).view(7, 2, 3, 3).double().cos()}
    objective = (loss if loss is OwnObjective else lambda **given: Objective(loss, **given))(inputs="x", targets="y")
    settings = {"objective": objective, "algorithms": kind(0.7, interpolates, "x", "y"), "seed": SEED}
    parts = Parts()
    return *one_step(make_net(), batch, size, ranks, callbacks=parts, **settings), parts.seen


def by_hand(case: str, kind: type[Mixing], parts: list[Batch]) -> tuple[torch.Tensor, float]:
    *_, sum_of, count_of = CASES[case]
    net, seed = make_net(), State(seed=SEED).derive_seed(str(kind.metadata.name))
    total, count = torch.zeros(()), 0
    for part in parts:  # each is drawn for alike, and mixed within itself
        generator = torch.Generator().manual_seed(seed)
        mixed, paired, lam = FUNCTIONS[kind](part["x"], part["y"], alpha=0.7, generator=generator)
        total = total + mix_losses(*(sum_of(net(mixed), targets) for targets in (part["y"], paired)), lam)
        count = count + count_of(part["y"])
    count = count or 1  # a sum is divided by nothing
    (total / count).backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    return nn.utils.parameters_to_vector(net.parameters()).detach(), (total / count).item()


@pytest.mark.parametrize(
    ("case", "kind"),
    [*((case, MixUp) for case in CASES), ("named parts, dense", CutMix), ("ignored and weighted", CutMix)],
)
def test_a_step_in_parts_is_the_one_written_by_hand(one_step: Any, case: str, kind: type[Mixing]) -> None:
    for size in (None, 3):
        weight, loss, parts = step(one_step, case, kind, size)
        torch.testing.assert_close((weight, loss), by_hand(case, kind, parts), rtol=1e-9, atol=1e-9)
        of_ranks = ThreadRanks.run(lambda ranks, size=size: step(one_step, case, kind, size, ranks))
        expected = by_hand(case, kind, [part for _, _, parts in of_ranks for part in parts])
        for weight, loss, _ in of_ranks:
            torch.testing.assert_close((weight, loss), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("interpolates", [False, True])
def test_rows_are_where_the_batches_say(interpolates: bool) -> None:
    class Mean(nn.Linear):
        def __init__(self, dim: int) -> None:
            super().__init__(3, 3, bias=False)
            nn.init.ones_(self.weight)
            self.dim = dim

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.cos()).cumsum(self.dim).mean(self.dim)

    x, y, trained = torch.randn(4, 4, 3), torch.tensor([0, 1, 2, 1]), []
    for dim, batch in ((1, (x, y, "kept")), (0, (x.transpose(0, 1), y, "kept"))):
        model = Mean(dim)
        options: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizers": torch.optim.SGD(model.parameters(), 1.0)}
        rule = Batches(dim={} if dim else {0: 1})
        with Trainer(model, [batch], algorithms=MixUp(1.0, interpolates), batches=rule, seed=1, **options) as trainer:
            trainer.fit("1ba")
        trained.append(model.weight.detach())
    torch.testing.assert_close(*trained)


@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_a_loss_that_counts_shares_of_classes_is_refused(kind: type[Mixing]) -> None:
    batch, net = {"x": torch.randn(4, 2, 3, 3).double(), "y": torch.tensor([0, 1, 2, 1])}, make_net()
    options: dict[str, Any] = {"objective": Objective(tokens, inputs="x", targets="y"), "optimizers": torch.optim.SGD}
    with (
        Trainer(net, [batch], algorithms=kind(1.0, False, "x", "y"), **options) as trainer,
        pytest.raises(ArgumentError, match=r"tokens counts 4.0 .*, and 12.0 for those of"),
    ):
        trainer.fit("1ba")
