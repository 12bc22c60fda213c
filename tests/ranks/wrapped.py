"""What DistributedDataParallel gets from algorithms, and what becomes of BatchNorm: parts of the program `sharded`."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, State, Trainer
from engine_core.parallel import FSDP

INPUTS, TARGETS = torch.linspace(-1, 1, 64).view(16, 4), torch.arange(16) % 3


class Branches(nn.Module):
    """A model with a layer that only some batches need."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.more, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(self.more(x) if x.detach().mean() > self.first.bias.detach().mean() else x)  # type: ignore[no-any-return]


class Skips(Algorithm):
    """Says that parameters may be without a gradient."""

    metadata = AlgorithmMetadata(name="skips", description="says so", events=(Event.INIT,))
    find_unused_parameters = True

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Any = None) -> None:
        pass


def _fit(model: nn.Module, **settings: Any) -> Trainer:
    batches = [(INPUTS[start : start + 4], TARGETS[start : start + 4]) for start in range(0, 16, 4)]
    with Trainer(
        model,
        batches,
        max_duration="2ep",
        loss_fn=nn.CrossEntropyLoss(),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        seed=1,
        device="cpu",
        progress_bar=False,
        **settings,
    ) as trainer:
        trainer.fit()
    return trainer


def with_unused() -> dict[str, Any]:
    """Return the weights of a model, of which some batches train only a part."""
    found = {}
    for size in (None, 1):
        model = Branches()
        _fit(model, algorithms=[Skips()], microbatch_size=size)
        found[str(size)] = {name: value.tolist() for name, value in model.state_dict().items()}
    return found


class Statistics(Callback):
    """Keeps the running statistics of this rank before a step, of all in an evaluation, and what is saved and left."""

    every_rank = True

    def after_backward(self, state: State, logger: Any) -> None:
        self.own = _buffers(state)
        self.own["1.num_batches_tracked"] += state.rank  # as if ranks had counted differently
        self.own["queue"] = nn.functional.normalize(torch.tensor([1.0, state.rank]), dim=0)  # of a rank's own rows
        state.model.load_state_dict(self.own, strict=False)  # type: ignore[union-attr]

    def eval_batch_start(self, state: State, logger: Any) -> None:
        self.seen = _buffers(state)

    def batch_checkpoint(self, state: State, logger: Any) -> None:
        if state.timestamp.batch == 5:
            state.loop.snapshot()  # type: ignore[misc]
            self.saved = _evaluated(state)

    def fit_end(self, state: State, logger: Any) -> None:
        self.left = _evaluated(state)


def _buffers(state: State) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.model.named_buffers()}  # type: ignore[union-attr]


def _evaluated(state: State) -> dict[str, torch.Tensor]:
    """Return the buffers that an evaluation uses: those of an average, if there is one."""
    own = _buffers(state)
    averages = [algorithm.averaged_state_dict() for algorithm in state.algorithms]  # type: ignore[attr-defined]
    return {name: averages[0][name] for name in own} if averages else own


def with_batch_norm(algorithms: Any = (), parallel: Any = "auto") -> dict[str, Any]:
    """Return the statistics of each rank before a step and in an evaluation, and the warnings of each."""
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), Statistics()
    model.register_buffer("queue", torch.zeros(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        more = {"callbacks": [seen], "eval_dataloader": [(INPUTS, TARGETS)], "parallel": parallel}
        trainer = _fit(model, algorithms=algorithms, **more)
    told = [str(each.message) for each in caught if "BatchNorm" in str(each.message)]
    found = {part: {k: v.tolist() for k, v in getattr(seen, part).items()} for part in ("own", "seen", "saved", "left")}
    return {"ranks": trainer.state.ranks.each({**found, "told": told})}


def with_averaged_batch_norm() -> dict[str, Any]:
    """Return the same where an average is evaluated, for each way to spread the model."""
    return {way: with_batch_norm([("ema", {"warmup": False})], way)["ranks"] for way in ("ddp", "fsdp")}


def with_mixed_precision() -> dict[str, Any]:
    """Return the dtypes in a forward, of the weights and of the loss, with FSDP's policy of mixed precision."""
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    seen: set[torch.dtype] = set()
    model[1].register_forward_hook(lambda _, inputs, outputs: seen.update((inputs[0].dtype, outputs.dtype)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    trainer = _fit(model, parallel=FSDP(args={"mp_policy": policy}))
    weights = {str(parameter.dtype) for parameter in model.parameters()}
    return {"forward": [*map(str, seen)], "weights": [*weights], "loss": trainer.state.loss.item()}
