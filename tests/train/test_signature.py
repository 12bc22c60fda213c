"""What a Trainer takes and offers: a new argument has to show why a callback can't do it."""

import inspect

from engine_core import Trainer

SIGNATURE = {
    "model": inspect.Parameter.empty,
    "train_dataloader": None,
    "max_duration": None,
    "loss_fn": None,
    "optimizers": None,
    "schedulers": None,
    "eval_dataloader": None,
    "eval_interval": "1ep",
    "metrics": None,
    "algorithms": (),
    "callbacks": (),
    "loggers": (),
    "algorithm_passes": None,
    "microbatch_size": None,
    "grad_clip_norm": None,
    "precision": "fp32",
    "device": "auto",
    "seed": None,
    "progress_bar": "auto",
    "run_name": None,
    "load_path": None,  # a checkpoint decides the seed, which is needed before any callback is asked
    "autoresume": False,
    "load_weights_only": False,
    "load_strict": True,
    "load_changed": "warn",  # decided before what was saved is put back, and so before a callback can say anything
    "parallel": "auto",  # decides the ranks, which INIT, seed and loaders need
    "batches": None,  # what a row is, which the clock, the ranks and microbatches ask before any event fires
    "objective": None,  # what model and loss get of a batch, which nothing but the loop gives them
}


def test_the_arguments_of_a_trainer():
    parameters = inspect.signature(Trainer).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == SIGNATURE
    assert list(parameters) == list(SIGNATURE)


def test_the_methods_of_a_trainer():
    public = [name for name in vars(Trainer) if not name.startswith("_")]
    assert public == ["fit", "eval", "results", "predict", "close"]
    assert str(inspect.signature(Trainer.fit).replace(return_annotation=inspect.Signature.empty)) == (
        "(self, duration: 'Time | str | None' = None)"
    )
    assert list(inspect.signature(Trainer.eval).parameters) == ["self", "dataloader"]
