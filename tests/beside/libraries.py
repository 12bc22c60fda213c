"""One way to train the cases with each of the libraries, for what holds in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .accelerate_runs import Run, make_accelerator
from .cases import EPOCHS, SEED, ended, make_loaders
from .lightning_runs import Digits, EngineCallback, make_trainer
from .transformers_runs import KEYS, Losses, left_by
from .transformers_runs import make_trainer as make_transformers_trainer


class Given(NamedTuple):
    """What a run is given."""

    folder: Any
    algorithms: Sequence[Any] = ()
    callbacks: Sequence[Any] = ()
    loggers: Sequence[Any] = ()
    epochs: int = EPOCHS
    clip: float | None = None
    bf16: bool = False


def with_accelerate(given):
    accelerator = make_accelerator(mixed_precision="bf16" if given.bf16 else "no")
    watching = {"callbacks": given.callbacks, "loggers": given.loggers}
    run = Run([*given.algorithms], accelerator=accelerator, max_grad_norm=given.clip, **watching)
    return run.train(given.epochs), run.loop.engine


def with_lightning(given):
    watching = {"callbacks": given.callbacks, "loggers": given.loggers}
    callback = EngineCallback([*given.algorithms], model="net", loss_fn="criterion", seed=SEED, **watching)
    module, precision = Digits(), "bf16-mixed" if given.bf16 else "32-true"
    settings = {"max_epochs": given.epochs, "gradient_clip_val": given.clip, "precision": precision}
    make_trainer([callback], **settings).fit(module, *make_loaders())
    return ended(module.net, callback.state, module.losses), callback.engine


def with_transformers(given):
    losses = Losses()
    watching = {"engine_callbacks": [losses, *given.callbacks], "engine_loggers": given.loggers}
    args = {"num_train_epochs": given.epochs, "max_grad_norm": given.clip or 0.0, "bf16": given.bf16}
    trainer = make_transformers_trainer(given.folder, [*given.algorithms], args=args, **watching)
    trainer.train()
    return left_by(trainer, losses), trainer.engine


TRAINED_WITH = {"accelerate": with_accelerate, "lightning": with_lightning, "transformers": with_transformers}
KEYS_OF = {"transformers": KEYS}
"""Arguments of algorithms, where the items of a batch have names."""
