"""What of a model can't be sharded is told before it is; one process pays nothing for several."""

import builtins

import pytest
import torch
from torch import nn

from engine_core import State
from engine_core.trainer.optimizers import check_of_loss

from .parts import batches, trainer

ONLY_PARALLEL = tuple(f"torch.distributed.{name}" for name in ("fsdp", "checkpoint", "elastic", "tensor"))


def test_several_ranks_refuse_to_train_a_loss_function_of_each():
    loss = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*nn.Linear(1, 1).parameters(), *loss.parameters()], lr=0.1)
    check_of_loss([optimizer], State(loss_fn=loss))
    with pytest.raises(ValueError, match=r"'weight' of the loss function is trained.* which then has a loss\(outputs"):
        check_of_loss([optimizer], State(loss_fn=loss, world_size=2))


def test_one_process_imports_nothing_for_several(monkeypatch):
    """Torch itself imports some of it, for its compiler; so what counts is who asks."""
    asked = []
    original = builtins.__import__

    def noting(name, of=None, *more):
        if name.startswith(ONLY_PARALLEL) and str((of or {}).get("__name__")).startswith("engine_core"):
            asked.append(name)
        return original(name, of, *more)

    monkeypatch.setattr(builtins, "__import__", noting)
    with trainer(eval_dataloader=batches(3), grad_clip_norm=1.0, progress_bar="auto") as made:
        made.fit()
    assert asked == []
