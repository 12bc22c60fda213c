"""Checkpoints that former versions wrote, with the schemas 1 and 2, load and resume; their files are never edited."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine_core import Algorithm, AlgorithmMetadata, Event, load_model

from .parts import net, rows, same, trainer
from .test_resume import OPTIMIZERS, SCHEDULERS, Counts, Noise, loader

SAVED = Path(__file__).parent / "saved"
"""Batch 6 of a run with 4 batches an epoch: as one process wrote it, and the same written by two."""


class Mean(Algorithm):
    """Evaluates with the mean of the weights after each batch and the mean before it."""

    metadata = AlgorithmMetadata(events=("batch_end", "eval_start", "eval_end"), writes=("model",))

    def __init__(self):
        self.kept = {}
        self.mean = {}

    def match(self, event, state):
        return event is Event.BATCH_END or bool(self.mean)

    def apply(self, event, state, logger):
        model = state.model
        own = {name: value.clone() for name, value in model.state_dict().items()}
        if event is Event.BATCH_END:
            floating = {name: value for name, value in own.items() if value.is_floating_point()}
            self.mean = {**own, **{name: (value + self.mean.get(name, value)) / 2 for name, value in floating.items()}}
        elif event is Event.EVAL_START:
            self.kept = own
            model.load_state_dict(self.mean)
        else:
            model.load_state_dict(self.kept)

    def averaged_state_dict(self):
        return {name: value.clone() for name, value in self.mean.items()} or None

    def state_dict(self):
        return {"mean": dict(self.mean)} if self.mean else {}

    def load_state_dict(self, state):
        self.mean = dict(state["mean"]) if state else {}


def run(**settings):
    given = {"optimizers": OPTIMIZERS["adamw"], "schedulers": (SCHEDULERS["cosine"], "1ba")}
    given |= {"max_duration": "3ep", "eval_dataloader": [rows(9)], "algorithms": [Noise(), Mean()]}
    return trainer(loader(), net(0.3), **{"callbacks": Counts(), **given, **settings})


@pytest.mark.filterwarnings("ignore:this run differs from the one that was saved")
def test_a_run_resumes_from_a_checkpoint_of_a_former_version():
    ends = []
    for settings in ({"seed": 4}, {"load_path": SAVED / "schema-1"}, {"load_path": SAVED / "schema-2"}):
        with run(**settings) as made:
            assert made.state.timestamp.batch == (6 if "load_path" in settings else 0)
            made.fit()
        assert made.state.callbacks[0].batches == 12
        ends.append(dict(made.state.model.state_dict()))
    whole, first, second = ends
    assert same(first, second)
    # Other versions of torch, on other machines, round in another way. BatchNorm takes the bias before it away with its
    # mean, so the bias has gradients that are such rounding alone, of which Adam makes steps of full length.
    same_anywhere = whole.keys() - {"0.bias", "1.running_mean"}
    assert all(torch.allclose(first[name].double(), whole[name].double(), atol=1e-5) for name in same_anywhere)


@pytest.mark.parametrize("schema", [1, 2])
def test_weights_and_average_of_a_former_version_are_told_apart(schema):
    weights = load_file(SAVED / "schema-1" / "model.safetensors")
    state = load_file(SAVED / "schema-1" / "state.safetensors")
    average = {name: state[f"algorithms.Mean.mean.{name}"] for name in weights}
    for which, expected in (("trained", weights), ("evaluated", average)):
        loaded = load_model(SAVED / f"schema-{schema}", net(), weights=which).state_dict()
        assert same(dict(sorted(loaded.items())), dict(sorted(expected.items())))
