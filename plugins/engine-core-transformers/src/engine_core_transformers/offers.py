"""What Hugging Face's Trainer offers to algorithms, as data. Imports nothing of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_core import ModelLoss, Objective
from engine_core.errors import UnsupportedError
from engine_core.losses import with_reduction
from engine_core.needs import ANOTHERS_LOOP, Offers

from .logits import LogitsLoss

SPLIT_OFFERS = (
    replace(ANOTHERS_LOOP, loop="transformers")
    .without("before_dataloader", why="accelerate's loader fetches a batch ahead; listen to after_dataloader")
    .without("snapshot", "go_back", why="checkpoints are the Trainer's; set save_strategy, and resume from one of them")
    .without("loss_fn", why="the loss is fixed when the Trainer is made; give EngineTrainer(loss_fn=...)")
    .without("metrics", why="the Trainer holds the results of evaluations; give EngineTrainer(compute_metrics=...)")
    .without("schedulers", why="the Trainer steps a scheduler of its own; give EngineTrainer(optimizers=...)")
)
"""With a `loss_fn`: the Trainer calls the model, and then the loss."""

TRANSFORMERS_OFFERS = SPLIT_OFFERS.without(
    *("before_forward", "after_forward", "before_loss", "after_loss", "outputs", "row_loss"),
    why="the model computes its loss in its forward; give EngineTrainer(loss_fn=...), as torch.nn.CrossEntropyLoss()",
)
"""By default: the model computes its own loss."""


def offers_of(version: str, args: Any, objective: Objective | None) -> Offers:
    """Return what one run offers, by its TrainingArguments and what computes its loss, if not the model's forward."""
    offers = replace(TRANSFORMERS_OFFERS if objective is None else SPLIT_OFFERS, loop=f"transformers {version}")
    plain = type(objective) in (LogitsLoss, ModelLoss, Objective)
    if plain and with_reduction(objective.loss_fn, "none") is None:  # type: ignore[union-attr]
        offers = offers.without("row_loss", why="loss_fn takes no `reduction`; let it, and give rows for 'none'")
    if args.gradient_accumulation_steps > 1:
        offers = offers.without("whole_batch", "closure", why="a step is several batches; don't accumulate gradients")
    if args.fp16:
        offers = offers.without("closure", "create_graph", why="the scaler of fp16 scales once a step; set bf16=True")
    if args.world_size > 1:
        offers = offers.without("global_batch", why="gradients of processes are averaged; give scope='rank'")
        if args.ddp_find_unused_parameters is False:
            why = "DDP waits for the gradients of all parameters; don't set ddp_find_unused_parameters=False"
            offers = offers.without("partial_forward", "freezing", why=why)
    return offers


def check_arguments(args: Any, kind: str) -> None:
    """Raise for arguments with which no algorithm can work; `kind` is how Accelerate spreads the run."""
    kind = "DataParallel" if args.n_gpu > 1 else "FSDP" if args.fsdp else kind
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise UnsupportedError(f"EngineTrainer can't work with {kind}: train with DDP, as torchrun starts it")
    if args.auto_find_batch_size:
        raise UnsupportedError("EngineTrainer can't start over in mid-run: leave auto_find_batch_size out")
