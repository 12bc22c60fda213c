"""What a loop with Accelerate offers to algorithms: in general, and in one run. Does not import Accelerate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_core.needs import ANOTHERS_LOOP, Offers

_EVALUATION = ("eval_batch_start", "eval_before_forward", "eval_after_forward", "eval_batch_end")
_UNSCALED = "the scaler of 'fp16' unscales once a step; use mixed_precision='bf16'"
_SEVERAL_BATCHES = "gradient_accumulation_steps makes a step of several batches; set it to 1"
_ENDLESS = "the length of training is not known; give EngineLoop(max_duration='10ep')"
_AVERAGED = "gradients are averaged over processes, whatever rows each has kept; choose in each with scope='rank'"
_AWAITED = "DDP waits for all gradients; give DistributedDataParallelKwargs(find_unused_parameters=True)"

ACCELERATE_OFFERS = (
    replace(ANOTHERS_LOOP, loop="accelerate")
    .without("before_dataloader", why="its loaders fetch a batch ahead; use after_dataloader")
    .without(*_EVALUATION, why="the batches of an evaluation are the user's loop; use eval_start and eval_end")
    .without("schedulers", why="the user's loop steps those that it has made; set learning rates instead")
    .without("snapshot", "go_back", why="Accelerate saves and loads the run; call accelerator.save_state() in the loop")
)
"""What it offers on one process, without accumulation and scaler, where `max_duration` is given."""


def offers_of(accelerator: Any, version: str, max_duration: Any) -> Offers:
    """Return what a run offers."""
    accumulates, several = accelerator.gradient_accumulation_steps > 1, accelerator.num_processes > 1
    waits = several and not getattr(accelerator.ddp_handler, "find_unused_parameters", False)
    lacks = (
        (max_duration is None, _ENDLESS, ("duration",)),
        (accelerator.scaler is not None, _UNSCALED, ("closure",)),
        (accumulates, _SEVERAL_BATCHES, ("whole_batch", "closure")),
        (several, _AVERAGED, ("global_batch",)),
        (waits, _AWAITED, ("freezing", "partial_forward")),
    )
    offers = replace(ACCELERATE_OFFERS, loop=f"accelerate {version}")
    for applies, why, names in lacks:
        offers = offers.without(*names, why=why) if applies else offers
    return offers
