"""What Lightning's loop offers: in general, as data, and in one run, as far as that is known. Imports no Lightning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_core.needs import ANOTHERS_LOOP, Offers

SPLIT_OFFERS = (
    replace(ANOTHERS_LOOP, loop="lightning")
    .without("before_dataloader", why="Lightning fetches a batch ahead of the step; use after_dataloader")
    .without("snapshot", why="Lightning saves the run, and states of algorithms with it; use its ModelCheckpoint")
    .without("go_back", why="Lightning restores a saved run only before it trains; use fit(ckpt_path=...)")
    .without("loss_fn", why="training_step calls a loss of its own; set that one in the LightningModule")
)
"""Of a run where `loss_fn` names the attribute that `training_step` calls."""

LIGHTNING_OFFERS = SPLIT_OFFERS.without(
    *("before_forward", "after_forward", "before_loss", "after_loss", "outputs", "row_loss"),
    why="training_step is a black box; name where training_step calls the loss: "
    "EngineCallback(loss_fn='<attribute of the LightningModule>')",
)
"""Of a run without it, the default."""

OF_DDP = "_ddp_kwargs"
"""What a DDPStrategy gives to torch's DDP: an attribute of its instances, and not public."""


def offers_of(offers: Offers, trainer: Any, library: Any, *, ends: bool) -> Offers:
    """Return the offers without what this run lacks; `library` is Lightning by the name that the trainer is from."""
    schedules = (isinstance(c, library.callbacks.GradientAccumulationScheduler) for c in trainer.callbacks)
    ddp = vars(trainer.strategy).get(OF_DDP)
    unused = "DDP waits for a gradient of each parameter; use strategy='ddp_find_unused_parameters_true'"
    own = "Lightning averages gradients whatever rows a process keeps; choose within each process: scope='rank'"
    accumulates = "accumulate_grad_batches makes a step of several batches; set it to 1"
    offers = replace(offers, loop=f"{library.__name__.partition('.')[0]} {library.__version__}")
    for lacks, names, why in (
        (trainer.scaler is not None, "closure", "its scaler unscales once a step; use precision='bf16-mixed'"),
        (trainer.accumulate_grad_batches > 1 or any(schedules), "whole_batch closure", accumulates),
        (not ends, "duration", "neither max_epochs nor max_steps is set; set one on the Trainer"),
        (trainer.min_epochs or trainer.min_steps, "stop", "min_epochs or min_steps forbids it; leave that out"),
        (trainer.world_size > 1, "global_batch", own),
        (ddp is not None and not ddp.get("find_unused_parameters"), "freezing partial_forward", unused),
    ):
        offers = offers.without(*names.split(), why=why) if lacks else offers
    return offers
