"""A model that grows while its weights are averaged: the average of a copy is that of its source."""

import torch
from torch import nn

from engine_core import Event, Trainer
from engine_core.registry import Registry
from engine_core_author.probes import at_events

DATA = [(torch.randn(6, 4, generator=torch.Generator().manual_seed(i)), torch.zeros(6, 4)) for i in range(8)]
FIRST, GROWS, DECAY = 2, 4, 0.6


def trained(callbacks=(), **settings):
    load = Registry.scan().load
    algorithms = [load("algorithms", "layer_stacking")(FIRST, f"{GROWS}ba")]
    algorithms += [load("algorithms", "ema")(DECAY, warmup=False)]
    torch.manual_seed(0)
    given = {"max_duration": "1ep", "loss_fn": nn.MSELoss(), "eval_dataloader": DATA[:1]}
    given |= {"optimizers": torch.optim.Adam}
    given |= {"algorithms": algorithms, "device": "cpu", "progress_bar": False, "callbacks": callbacks, **settings}
    with Trainer(nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)]), DATA, **given) as trainer:
        trainer.fit()
    return algorithms[1].averaged_state_dict()


def test_blocks_that_join_have_the_average_of_their_sources(tmp_path):
    seen = []
    look = at_events([Event.AFTER_TRAIN_BATCH, Event.FIT_END], lambda _, s: seen.append(copies(s.model)))
    found = trained([look, ("checkpoint_saver", {"folder": str(tmp_path), "interval": "1ba", "keep_last": None})])
    average = None
    for weights in seen[1:]:  # those after each step
        whole = {f"{i}.{k}": weights.get(f"{i}.{k}", weights[f"{i % FIRST}.{k}"]) for i in range(5) for k in PARTS}
        average = whole if average is None else {k: average[k].lerp(v, 1 - DECAY) for k, v in whole.items()}
    torch.testing.assert_close(found, average)
    for batch in (GROWS, GROWS + 1):
        (path,) = tmp_path.glob(f"*ba{batch}")
        torch.testing.assert_close(trained(load_path=path), found, rtol=0, atol=0)


PARTS = ("weight", "bias")


def copies(model):
    return {name: value.clone() for name, value in model.state_dict().items()}
