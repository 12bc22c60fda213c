"""Is a run on two ranks the run of one process?"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn

from engine_core.batch import Batches
from engine_core.errors import RankError
from engine_core.ranks import Ranks

from ..kit import AlgorithmKit, Fault
from ..ranks import ThreadRanks
from ..runs import SEED, Attempt, Loader, Outcome, attempt, data_of, described, seed_parts
from .execution import close

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def test_two_ranks(kit: AlgorithmKit) -> Fault | None:
    """Train in two threads, each with its rows of every batch, and in one with all of them."""
    batches = _of_unequal_parts(list(data_of(kit)))
    size = (Batches().rows(batches[0]) + 1) // 2 if kit.on_ranks == "microbatches" else None
    one = _train(kit, batches, has_algorithm=True, microbatch_size=size)
    if one.outcome is None:
        pytest.skip(f"it does not work on one process with these batches: {described(one.error)}")
    two = _train_on_two(kit, batches, has_algorithm=True)
    if (errors := [run.error for run in two if run.error is not None]) != []:
        cause = next((error for error in errors if not isinstance(error, RankError)), errors[0])
        is_refused = all(run.refused for run in two) and not isinstance(cause, RankError)
        return None if is_refused else Fault(f"on two ranks {described(cause)}", cause)
    first, second = (run.outcome for run in two)
    if different := _difference(first, second):
        return Fault(f"two ranks end with different results: {different}")
    if kit.on_ranks == "law" or not (different := _difference(one.outcome, first)):
        return None
    plain = _train(kit, batches, has_algorithm=False), _train_on_two(kit, batches, has_algorithm=False)[0]
    if _difference(*(run.outcome for run in plain)):
        pytest.skip(
            "without it too two ranks differ from one process: rows of the kit's model see each other, or it draws"
        )
    what = "two ranks" if size is None else f"two ranks, compared with microbatches of {size} rows,"
    return Fault(f"{what} and one process end with different results: {different}")


def _of_unequal_parts(batches: Sequence[Any]) -> list[Any]:
    """Return batches of one odd number of rows: a mean over the ranks of their means is not the mean then."""
    rows = Batches().rows(batches[0])
    odd = rows - 1 if rows > 2 and rows % 2 == 0 else rows
    return [Batches().part(batch, slice(odd)) for batch in batches if Batches().rows(batch) == rows]


def _train(kit: AlgorithmKit, batches: Sequence[Any], *, has_algorithm: bool, **settings: Any) -> Attempt:
    seed_parts(SEED)
    model = _of_single_rows(kit.make_model())
    return attempt(kit, [kit.make_algorithm()] if has_algorithm else [], data=Loader(batches), model=model, **settings)


def _train_on_two(kit: AlgorithmKit, batches: Sequence[Any], *, has_algorithm: bool) -> list[Attempt]:
    def program(ranks: Ranks) -> Attempt:
        torch.set_num_threads(1)  # of this thread
        return _train(kit, batches, has_algorithm=has_algorithm, parallel=ranks)

    return ThreadRanks.run(program)


def _difference(one: Outcome | None, other: Outcome | None) -> str | None:
    return None if one is None or other is None else close(one, other)


def _of_single_rows(model: nn.Module) -> nn.Module:
    """Let a row's outputs depend on that row alone: no statistics of a batch, no draws of dropout."""
    for module in model.modules():
        if isinstance(module, _BATCH_NORMS):
            module.training = False
            vars(module)["train"] = MethodType(_stay, module)
        elif isinstance(module, _DROPOUTS):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:  # noqa: ARG001, FBT001, FBT002  as torch has it
    return nn.Module.train(module, mode=False)
