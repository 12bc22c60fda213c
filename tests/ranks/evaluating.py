"""The program of test_evaluation: deals and evaluates each case on all ranks, and rank 0 writes what all of them found.

`found_by(names)` runs the cases in one process, which the others are compared with.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils import data as torch_data
from torchmetrics import classification as of_classes

from engine_core import Callback, LoggerDestination
from engine_core.callbacks.reporter import RunReporter
from engine_core.errors import EngineError
from engine_core.parallel import DDP, join
from insight_plugin import TrainMetrics

sys.path.insert(0, str(Path(__file__).parent))
import dealing
from trainers import fit, trainer_of

INPUTS = torch.randn(53, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(0, 4, (53,), generator=torch.Generator().manual_seed(1))
DATA = torch_data.TensorDataset(INPUTS, TARGETS)


def rank_here():
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


class OwnLoss(nn.Module):
    """A model with its own loss, which evaluates in its own way."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1])

    def eval_forward(self, batch):
        return self(batch) * 2, batch[1]


def loader(**settings):
    return torch_data.DataLoader(DATA, **{"batch_size": 8, **settings})


def subset(rows, **settings):
    return torch_data.DataLoader(torch_data.Subset(DATA, range(rows)), **settings)


def a_list():
    return [(INPUTS[a:b], TARGETS[a:b]) for a, b in [(0, 1), (1, 9), (9, 12), (12, 13)]]


class Merged:
    """A metric of one's own, which can be merged."""

    def reset(self):
        self.total, self.rows, self.largest = 0.0, 0, []

    def update(self, outputs, targets):
        self.total += float((outputs[:, 0].double() * targets).sum())
        self.rows += len(targets)
        self.largest.append(outputs.max(0).values)

    def compute(self):
        return {"mean": self.total / self.rows, "rows": self.rows, "largest": torch.stack(self.largest).amax()}

    def merge_state(self, others):
        for other in others:
            self.total, self.rows = self.total + other.total, self.rows + other.rows
            self.largest += other.largest


METRICS = {
    "accuracy": lambda: of_classes.MulticlassAccuracy(4),
    "auroc": lambda: of_classes.MulticlassAUROC(4, thresholds=None),
    "merged": Merged,
}

EVALUATED = {
    "plain": loader,
    "own generator": lambda: loader(shuffle=True, generator=torch.Generator().manual_seed(rank_here())),
    "workers": lambda: loader(shuffle=True, num_workers=2, persistent_workers=True),
    "of one row": lambda: subset(3, batch_size=1),
    "list": a_list,
    "batches of indices": lambda: torch_data.DataLoader(DATA, batch_sampler=[[*range(7)], [9], [*range(20, 53)]]),
}


SHARDED = ("plain", "of one row", "predict of one row", "train", "guard")


class Seen(Callback):
    """Keeps how many rows the evaluation has counted, and the batches with placeholders."""

    def eval_start(self, state, logger):
        self.placeholders = 0

    def eval_batch_end(self, state, logger):
        self.placeholders += state.is_placeholder
        self.samples, self.batches = state.eval_timestamp.sample, state.eval_timestamp.batch


def evaluate(loaders, *, model=None, metrics=METRICS, **settings):
    """Return the results of two evaluations, and the outputs of a prediction."""
    seen, own = Seen(), model is not None
    settings |= {"metrics": {name: make() for name, make in metrics.items()}, "callbacks": seen, "seed": 7}
    with trainer_of(model or net(), **settings, **({"loss_fn": None} if own else {})) as made:
        torch.manual_seed(11 + made.state.rank)
        results = [made.eval({"eval": loaders}), made.eval({"eval": loaders})]
        counted = {"samples": seen.samples, "batches": seen.batches}
        return {**results[0], **{f"again/{k}": v for k, v in results[1].items()}, **counted}, seen.placeholders


def predict(loaders, **settings):
    """Return how many rows each output has on this rank, and the outputs of all ranks."""
    with trainer_of(net(), seed=7, **settings) as made:
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
        ("train_metrics", {"metrics": {name: make() for name, make in METRICS.items()}}),
        "gradient_norm",
        "loss_guard",
        ("early_stopper", {"metric": "max:eval/accuracy", "patience": 2}),
        RunReporter(lines.append),
    ]
    settings |= {
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.02),
        "eval_dataloader": loader(batch_size=7),
        "metrics": {"accuracy": of_classes.MulticlassAccuracy(4)},
        "callbacks": callbacks,
        "loggers": log,
        "grad_clip_norm": 0.5,
    }
    loss_fn = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]))
    with trainer_of(model, loader(shuffle=True), max_duration="4ep", loss_fn=loss_fn, seed=7, **settings) as made:
        made.fit()
        told = [json.loads(line) for line in lines]
        return {
            "logs": log.out,
            "results": made.results,
            "train_loss": [fact["train_loss"] for fact in told if "train_loss" in fact],
            "callbacks": [type(callback).__name__ for callback in made.state.callbacks],
            "weights": weights_of(model),
        }


def weights_of(model):
    """Return the sum of each parameter, of a sharded one too."""
    whole = (each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters())
    return [each.detach().sum().item() for each in whole]


def guard(**settings):
    """Return the weights of a training in which one row of one batch has no finite loss."""
    inputs = INPUTS.clone()
    inputs[20, 3] = torch.nan
    model, rows = net(), torch_data.DataLoader(torch_data.TensorDataset(inputs, TARGETS), batch_size=8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, rows, max_duration="1ep", callbacks="loss_guard", seed=7, **settings)
    warned = [each for each in caught if "its step is skipped" in str(each.message)]
    return weights_of(model), len(warned)


def save(**settings):
    """Return what train_metrics saves in the middle of an epoch, added up over the ranks."""
    watch = TrainMetrics({name: METRICS[name]() for name in ("accuracy", "merged")})
    with trainer_of(net(), loader(), callbacks=watch, loggers=Log(), seed=7, **settings) as made:
        made.fit("3ba")
        saved = watch.state_dict()["metrics"]
        right = [int(own["accuracy"]["parts"][0]["tp"].sum()) for own in saved]
        return {"right": sum(right), "rows": sum(own["merged"]["rows"] for own in saved)}


def refused(loaders, **settings):
    """Return the error of an evaluation that can't be."""
    try:
        evaluate(loaders, **settings)
    except (EngineError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def only_on_several():
    """Return what one process has no counterpart of."""
    rank, size = rank_here(), torch.distributed.get_world_size()
    own = [*range(rank, 53, size)][: None if rank else 5]
    local = torch_data.DataLoader(torch_data.Subset(DATA, own), batch_size=4)
    merged = {"merged": Merged}
    sampled = loader(sampler=torch_data.DistributedSampler(DATA))
    by_sampler = evaluate(sampled, metrics=merged, parallel=DDP(data="local"))[0]
    accuracy = {"accuracy": METRICS["accuracy"], **merged}
    few = [(INPUTS[:4], TARGETS[:4])] * (1 + rank)
    return {
        "own": own,
        "recipe": recipe(),
        "local": evaluate(local, metrics=accuracy, parallel=DDP(data="local"))[0],
        "predicted": predict(local, parallel=DDP(data="local"))[0],
        "by_sampler": by_sampler,
        "lengths": refused(few),
        "ended": refused(iter([]) if rank == 1 else iter(few), parallel=DDP(data="local")),
    }


def recipe():
    """Return by how much the predictions in order of the page differ from what its model gives for its rows."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "scale.md").read_text(encoding="utf-8")
    (block,) = [text.partition("```")[0] for text in page.split("```python\n") if "trainer.predict" in text]
    names = {"__name__": "page"}
    exec(block, names)
    return (names["predictions"] - names["model"](names["rows"])).abs().max().item()


def found_by(names, **settings):
    """Return what each case gives."""
    cases = {name: lambda make=make: evaluate(make(), **settings) for name, make in EVALUATED.items()}
    cases["own loss"] = lambda: evaluate(loader(), model=OwnLoss(), **settings)
    cases["predict"] = lambda: predict(loader(batch_size=9, shuffle=True), **settings)
    cases["predict of one row"] = lambda: predict(subset(3, batch_size=1), **settings)
    cases |= {made.__name__: lambda made=made: made(**settings) for made in (train, guard, save)}
    return {name: cases[name]() for name in names or cases}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {"same": found_by(sys.argv[2:]), "sharded": found_by(SHARDED, parallel="fsdp"), "others": only_on_several()}
    ranks = join(DDP(), "cpu")  # only now: after errors that all ranks raise the group is another
    found["rows"] = {name: dealing.seen(arguments) for name, arguments in dealing.cases(ranks).items()}
    whole = ranks.each(found)
    if ranks.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(whole))
