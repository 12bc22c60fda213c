"""What one of two processes that torchrun starts sees in transformers' Trainer. Not a test itself."""

import json
import os

import torch

from engine_core.errors import EngineError
from engine_core.event import Event
from engine_core_author.probes import at_events

from .cases import SB, make_algorithms
from .transformers_runs import KEYS, Trainer, make_trainer, train_words

ARGS = {"ddp_backend": "gloo", "per_device_train_batch_size": 4, "eval_strategy": "no", "max_steps": 4}


def trained(folder, algorithms, *, kind=Trainer, **args):
    """Return a trainer that has trained, and the drawn images of its batches."""
    drawn = []

    def look(_, state):
        drawn.append([(image == 0).float().mean().item() for image in state.batch["pixel_values"]])

    callbacks = [at_events([Event.BATCH_START], look)]
    trainer = make_trainer(folder, algorithms, kind=kind, args={**ARGS, **args}, engine_callbacks=callbacks)
    trainer.train()
    return trainer, drawn


def refusal(folder, algorithms=(), **args):
    """Return why the algorithms are refused, "" if they are not."""
    try:
        make_trainer(folder, algorithms, args={**ARGS, **args})
    except EngineError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def facts(trainer):
    """Return the weights as one sum each, and what State shows."""
    state = trainer.engine_state
    return {
        "weights": {name: weight.double().sum().item() for name, weight in trainer.model.state_dict().items()},
        "clock": state.timestamp[:3],
        "ranks": [state.rank, state.world_size, type(state.ranks).__name__],
        "wrapped": type(trainer.model_wrapped).__name__,
    }


def main(folder):
    """Run everything; the second process writes its own file."""
    rank = int(os.environ["RANK"])
    found = {}
    plain, _ = trained(folder / "plain", ())
    found["plain"] = facts(plain)
    for steps in (1, 2):
        found[f"words {steps}"] = train_words(folder, steps, ddp_backend="gloo")
    algorithms = [*make_algorithms("squeeze_excite"), *make_algorithms("cutout", keys=KEYS)]
    surgery, found["drawn"] = trained(folder / "surgery", algorithms)
    found["surgery"] = facts(surgery)
    own = ("selective_backprop", {**SB, "scope": "rank", "input_key": "pixel_values", "target_key": "labels"})
    chosen, _ = trained(folder / "chosen", [own, "ema"], save_strategy="steps", save_steps=2)
    found["chosen"] = facts(chosen)
    if rank == 0:  # transformers 5.0 can't load it on several processes without a GPU
        (folder / "chosen" / "checkpoint-2" / "optimizer.pt").unlink()
    torch.distributed.barrier()
    resumed = make_trainer(folder / "chosen", [own, "ema"], args=ARGS)
    resumed.train(resume_from_checkpoint=str(folder / "chosen" / "checkpoint-2"))
    found["resumed"] = facts(resumed)
    resumed.evaluate()
    found["evaluated"] = resumed.engine_state.metrics["eval_loss"]
    found["refused"] = refusal(folder, make_algorithms("selective_backprop", keys=KEYS))
    found["unfound"] = refusal(folder, ["layer_freezing"], ddp_find_unused_parameters=False)
    (folder / f"{rank}.json").write_text(json.dumps(found))
