"""What is drawn before a batch is mixed: lambda, a place, and which rows are paired. Independent of the engine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from engine_core.arguments import check_number
from engine_core.batch import Batches
from engine_core.errors import ArgumentError
from engine_core.randomness import private_unless

__all__ = ["Draw", "MixedBatch", "check_alpha", "draw", "of_partners"]


class MixedBatch(NamedTuple):
    """A batch whose rows are mixed with other rows of it.

    Args:
        input: each row mixed with its partner, (N, ...).
        paired_target: the targets of the partners, (N, ...).
        lam: a row's own share; its partner's is `1 - lam`.
    """

    input: torch.Tensor
    paired_target: Any
    lam: float


@dataclass(frozen=True)
class Draw:
    """What is drawn once for a batch.

    Args:
        lam: a row's own share, in [0, 1].
        place: the centre of a box, (vertical, horizontal), as fractions of the image in [0, 1).
        seed: of the pairings.
    """

    lam: float
    place: tuple[float, float]
    seed: int

    def pairing(self, rows: int) -> torch.Tensor:
        """Return each row's partner, a permutation (rows,), the same one each time."""
        return torch.randperm(rows, generator=torch.Generator().manual_seed(self.seed), device="cpu")


def check_alpha(alpha: object) -> float:
    """Return alpha if it is in (0, 1e6]; beyond that all lambdas are one half, and at 1e308 a draw would never end."""
    return check_number("alpha", alpha, "(0, 1e6]", "both parameters of the Beta distribution of lambda")


def of_partners(target: Any, order: torch.Tensor) -> Any:
    """Return the targets of each row's partner; None stays None.

    Raises:
        ArgumentError: (a ValueError) unless there is a target for each row.
    """
    if target is None:
        return None
    batches = Batches()
    rows, targets = order.shape[0], batches.rows(target)
    if targets != rows:
        raise ArgumentError(f"the inputs have {rows} rows and the targets {targets}: each row needs one target")
    return batches.part(target, order)


def draw(alpha: float, generator: torch.Generator | None = None) -> Draw:
    """Draw lambda from Beta(alpha, alpha), a place and a seed; no global generator is touched.

    Args:
        generator: where the draws come from; None: seeded by the system.

    Example:
        >>> one, again = (draw(0.2, torch.Generator().manual_seed(1)) for _ in range(2))
        >>> one == again, 0 <= one.lam <= 1
        (True, True)
    """
    if torch.compiler.is_compiling():  # else the graph would repeat the first draw for ever
        return cast("Draw", torch.compiler.disable(_draw)(alpha, generator))  # type: ignore[no-untyped-call]
    return _draw(alpha, generator)


def _draw(alpha: float, generator: torch.Generator | None) -> Draw:
    own = private_unless(generator)
    seed = int(torch.randint(2**63 - 1, (), generator=own, device=own.device))
    source = random.Random(seed)  # noqa: S311  not for cryptography
    lam = source.betavariate(alpha, alpha)
    if source.random() < 0.5:  # if a tiny alpha makes both of its parts underflow, betavariate always returns 0
        lam = 1 - lam
    return Draw(lam, (source.random(), source.random()), source.getrandbits(63))
