"""The program of test_evaluation: evaluates each case on all ranks, and rank 0 writes what all of them found.

`found_by(names)` runs the cases in one process, which the others are compared with.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import data as torch_data
from torchmetrics import classification as of_classes

from engine_core import Callback, LoggerDestination, Trainer
from engine_core.callbacks.json_lines import JsonLines
from engine_core.errors import EngineError
from engine_core.parallel import DDP

if __package__:  # of the tests
    from .order_metrics import METRICS, InOrder, OfParts
else:  # torchrun's program
    from order_metrics import METRICS, InOrder, OfParts

INPUTS = torch.randn(53, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(0, 4, (53,), generator=torch.Generator().manual_seed(1))
DATA = torch_data.TensorDataset(INPUTS, TARGETS)


class Stream(torch_data.IterableDataset):
    """Examples without a number."""

    def __init__(self, more_on_rank=None):
        self.more_on_rank = more_on_rank

    def __iter__(self):
        yield from DATA
        if self.more_on_rank == _rank():
            yield DATA[0]


def _rank():
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


class OwnLoss(nn.Module):
    """A model with its own loss, whose outputs are a mapping and whose targets are a tuple."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, batch):
        return {"logits": self.net(batch[0])}

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs["logits"], batch[1])

    def eval_forward(self, batch):
        return self(batch), (batch[1], batch[1] * 2)


def loader(**settings):
    return torch_data.DataLoader(DATA, **{"batch_size": 8, **settings})


def subset(rows, **settings):
    return torch_data.DataLoader(torch_data.Subset(DATA, range(rows)), **settings)


def ignoring(size):
    """Batches of which the second has no target that counts, nor has the second half of the third."""
    targets = TARGETS.clone()
    targets[size : 2 * size] = -100
    targets[2 * size + size // 2 : 3 * size] = -100
    return [(INPUTS[i : i + size], targets[i : i + size]) for i in range(0, 53, size)]


def a_list():
    return [(INPUTS[a:b], TARGETS[a:b]) for a, b in [(0, 1), (1, 9), (9, 12), (12, 13)]]


EVALUATED: dict[str, Any] = {
    "plain": loader,
    "shuffled": lambda: loader(shuffle=True),
    "own generator": lambda: loader(shuffle=True, generator=torch.Generator().manual_seed(_rank())),
    "workers": lambda: loader(shuffle=True, num_workers=2, persistent_workers=True),
    "of one row": lambda: subset(3, batch_size=1),
    "one row": lambda: subset(1, batch_size=4),
    "stream": lambda: torch_data.DataLoader(Stream(), batch_size=4),
    "list": a_list,
    "samples": lambda: loader(batch_size=None, sampler=torch_data.BatchSampler(range(53), 6, drop_last=False)),
}
LOSSES: dict[str, Any] = {
    "weighted": lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4])),
    "sum": lambda: nn.CrossEntropyLoss(reduction="sum"),
}


class Seen(Callback):
    """Keeps how many rows the evaluation has counted, and the batches with placeholders."""

    def eval_start(self, state, logger):
        self.placeholders = 0

    def eval_batch_end(self, state, logger):
        self.placeholders += state.is_placeholder
        self.samples, self.batches = state.eval_timestamp.sample, state.eval_timestamp.batch


def evaluate(loaders, *, model=None, loss=nn.CrossEntropyLoss, metrics=METRICS, **settings):
    """Return the results of two evaluations, and the outputs of a prediction."""
    own = model is not None
    seen = Seen()
    with Trainer(
        model or net(),
        loss_fn=None if own else loss(),
        metrics={name: make() for name, make in metrics.items()},
        callbacks=[seen],
        device="cpu",
        seed=7,
        **settings,
    ) as made:
        torch.manual_seed(11 + made.state.rank)
        results = [made.eval({"eval": loaders}), made.eval({"eval": loaders})]
        counted = {"samples": seen.samples, "batches": seen.batches}
        return {**results[0], **{f"again/{k}": v for k, v in results[1].items()}, **counted}, seen.placeholders


def predict(loaders, **settings):
    """Return how many rows each output has on this rank, and the outputs of all ranks."""
    with Trainer(net(), loss_fn=nn.CrossEntropyLoss(), device="cpu", seed=7, **settings) as made:
        torch.manual_seed(11 + made.state.rank)
        outputs = list(made.predict(loaders))
        whole, _ = made.state.ranks.gather(torch.cat([*outputs, torch.zeros(0, 4)]))
        return [len(each) for each in outputs], whole.tolist()


class Log(LoggerDestination):
    """Keeps what is logged."""

    def __init__(self):
        self.out = []

    def log_metrics(self, metrics, step):
        self.out += [[step, name, float(value)] for name, value in metrics.items()]


def train(**settings):
    """Return what a training with all callbacks of this subject logs, and the lines that follow it."""
    lines, log = [], Log()
    model = net()
    callbacks = [
        ("train_metrics", {"metrics": {name: make() for name, make in METRICS.items() if name != "in_order"}}),
        "gradient_norm",
        "loss_guard",
        ("early_stopper", {"metric": "max:eval/accuracy", "patience": 2}),
        JsonLines(lines.append),
    ]
    with Trainer(
        model,
        loader(shuffle=True),
        max_duration="6ep",
        loss_fn=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4])),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.02),
        eval_dataloader=loader(batch_size=7),
        metrics={"accuracy": of_classes.MulticlassAccuracy(4)},
        callbacks=callbacks,
        loggers=[log],
        grad_clip_norm=0.5,
        device="cpu",
        seed=7,
        **settings,
    ) as made:
        made.fit()
        told = [json.loads(line) for line in lines]
        return {
            "logs": log.out,
            "results": made.results,
            "train_loss": [fact["train_loss"] for fact in told if "train_loss" in fact],
            "callbacks": [type(callback).__name__ for callback in made.state.callbacks],
            "weights": [parameter.detach().sum().item() for parameter in model.parameters()],
        }


def refused(loaders, **settings):
    """Return the error of an evaluation that can't be."""
    try:
        evaluate(loaders, **settings)
    except EngineError as error:
        return f"{type(error).__name__}: {error}"
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Words(OwnLoss):
    """A model whose outputs hold a word."""

    def eval_forward(self, batch):
        return {"logits": self.net(batch[0]), "word": "a word"}, batch[1]


class Ragged(OwnLoss):
    """A model whose outputs have another shape on another rank."""

    def eval_forward(self, batch):
        return {"logits": nn.functional.pad(self.net(batch[0]), (0, _rank()))}, batch[1]


def only_on_several():
    """Return what one process has no counterpart of."""
    rank, size = _rank(), torch.distributed.get_world_size()
    own = [*range(rank, 53, size)][: None if rank else 5]
    local = torch_data.DataLoader(torch_data.Subset(DATA, own), batch_size=4)
    in_order = {"in_order": InOrder}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        by_sampler = evaluate(loader(sampler=torch_data.DistributedSampler(DATA)), metrics=in_order)[0]
    accuracy = {"accuracy": METRICS["accuracy"], **in_order}
    few = [(INPUTS[:4], TARGETS[:4])] * (1 + rank)
    return {
        "own": own,
        "local": evaluate(local, metrics=accuracy, parallel=DDP(data="local"))[0],
        "predicted": predict(local, parallel=DDP(data="local"))[0],
        "by_sampler": by_sampler,
        "warned": [str(each.message) for each in caught if "DistributedSampler" in str(each.message)][:1],
        "words": refused(loader(), model=Words(), metrics=in_order),
        "ragged": refused(loader(), model=Ragged(), metrics=in_order),
        "streams": refused(torch_data.DataLoader(Stream(more_on_rank=1), batch_size=4)),
        "lengths": refused(few),
        "ended": refused(iter([]) if rank == 1 else iter(few), parallel=DDP(data="local")),
        "rows": refused([(INPUTS[: 4 + 2 * rank], TARGETS[: 4 + 2 * rank])], metrics={}),
    }


def found_by(names, **settings):
    """Return what each case gives."""
    cases: dict[str, Any] = {name: lambda make=make: evaluate(make(), **settings) for name, make in EVALUATED.items()}
    for name, loss in LOSSES.items():
        cases[name] = lambda loss=loss: evaluate(ignoring(6), loss=loss, metrics={}, **settings)
    cases["own loss"] = lambda: evaluate(loader(), model=OwnLoss(), metrics={"parts": OfParts}, **settings)
    cases["predict"] = lambda: predict(loader(batch_size=9, shuffle=True), **settings)
    cases["predict of one row"] = lambda: predict(subset(3, batch_size=1), **settings)
    cases["train"] = lambda: train(**settings)
    return {name: cases[name]() for name in names or cases}


if __name__ == "__main__":
    torch.set_num_threads(1)
    first = Trainer(nn.Linear(1, 1), device="cpu")
    ranks = first.state.ranks
    found = {"same": found_by(sys.argv[2:]), "others": only_on_several()}
    whole = ranks.each(found)
    if ranks.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(whole))
