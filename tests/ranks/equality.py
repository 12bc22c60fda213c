"""The program of test_equality: trains each case on all ranks, and rank 0 writes what came out to a JSON file.

`run(name)` trains one in one process, which the others are compared with.
"""

import functools
import json
import sys
import warnings
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Callback, Loss
from engine_core.batch import Batches
from engine_core.parallel import DDP, join
from engine_core.registry import Registry

sys.path.insert(0, str(Path(__file__).parent))
from moves import wrong_moves
from trainers import Logs, fit, trainer_of

SB = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}
CARRIED = {"scorer": "carried", "index_key": 2}
SB_CASES = {
    "composer": {},
    "topk": {"selector": "topk"},
    "cdf": {"selector": "cdf"},
    "uniform": {"selector": "uniform"},
    "stale": {"scorer": "stale", "index_key": 2, "refresh": 2},
    "carried": CARRIED,
    "proxy": {"scorer": "proxy", "proxy": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))},
    "rho": {"scorer": "rho", "irreducible": torch.linspace(0, 2, 29), "index_key": 2},
    "few": {"keep": 0.13},
    "floor": {"floor": 0.3, "keep": 0.3, "multiple_of": 2},
    "scaled": {"scale_factor": 0.5},
    "reuse": {"reuse": "auto"},
    "by a function": {"scorer": lambda batch, state: batch[0].sum((1, 2, 3)), "scale_factor": 1},
}


def pixels_of(batch):
    """Return the rows of pixels of images (n, 8, 8), as the places of a sequence."""
    return batch[0].flatten(1, 2)


def with_pixels(batch, rows):
    """Return the batch with images of these rows of pixels."""
    return (rows.unflatten(1, (1, -1)), *batch[1:])


ALONE = {
    "info_batch": {},
    "curriculum": {"difficulty": lambda dataset: dataset.tensors[0].sum((1, 2, 3))},
    "sequence_warmup": {"duration": "1dur", "min_seq_length": 4, "keys": [(pixels_of, with_pixels)]},
    "sam": {},
    "ema": {"decay": 0.9},
    "swa": {"start": 0.3},
    "lawa": {"interval": "2ba", "window": 3},
    "lookahead": {"k": 3},
    "gradient_clipping": {},
    "zclip": {"z_threshold": 0.5, "warmup": 2},
    "label_smoothing": {},
    "gradient_penalty": {"weight": 0.01},
    "layer_freezing": {"start": 0.2, "level": 0.5},
    "blurpool": {"min_channels": 1},
    "squeeze_excite": {"min_channels": 1, "latent_channels": 4},
    "fused_layernorm": {},
    "gated_linear_units": {},
    "whitened_stem": {},
    "ngram_embedding": {"buckets": 16},
    "token_shift": {},
    "logit_soft_cap": {"cap": 2},
    "alternating_flip": {},
    "col_out": {},
    "test_time_augmentation": {},
    "activation_checkpointing": {"blocks": ["Linear"]},
    "layer_stacking": {"grow": "3ba"},
}
MIXED = {"mixup": {}, "cutmix": {}, "progressive_resizing": {"mode": "crop", "size_increment": 2}}
IGNORING = nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0), ignore_index=0)


def mean_of_tokens(outputs, targets):
    """Say what counts: the targets that are not class 0."""
    return Loss(F.cross_entropy(outputs, targets, ignore_index=0, reduction="sum"), (targets != 0).sum())


def soft(outputs, targets):
    return F.cross_entropy(outputs, F.one_hot(targets, 10) * 0.9 + 0.01)


def with_total(outputs, targets):
    return {
        "a": F.cross_entropy(outputs, targets),
        "b": outputs.square().mean(),
        "total": F.cross_entropy(outputs, targets),
    }


LOOPS = {
    "plain": {},
    "clipping": {"grad_clip_norm": 0.1},
    "microbatches": {"microbatch_size": 3},
    "summed": {"loss_fn": nn.CrossEntropyLoss(reduction="sum"), "lr": 0.005},
    "ignored and weighted": {"loss_fn": IGNORING, "microbatch_size": 2},
    "tuple of losses": {"loss_fn": lambda o, t: (F.cross_entropy(o, t), o.square().mean())},
    "dict of losses": {"loss_fn": with_total},
    "mean of tokens": {"loss_fn": mean_of_tokens, "microbatch_size": 3},
    "soft targets": {"loss_fn": soft, "microbatch_size": 3},
    "fewer rows than ranks": {"rows": 17},
    "two workers": {"num_workers": 2},
    "a list of batches": {"as_list": True},
    "compiled": {"algorithms": [("compile", {"backend": "eager"})], "rows": 24},  # one size: one graph, here and there
}


class BasicBlock(nn.Module):
    """A residual block whose rows don't see each other."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + F.relu(self.conv(x))


class Places(nn.Module):
    """Adds to each feature what a norm makes of an embedding of its place, modulo 4."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm1 = nn.Embedding(4, 8), nn.LayerNorm(8)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device) % 4
        return x + self.norm1(self.embed(places.expand(x.shape)))[..., 0]


def make_model():
    """Return a net with something for each algorithm of this repository."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Sequential(BasicBlock(8), BasicBlock(8)),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
        Places(),
    )


class Rows(Callback):
    """Notes how many rows this rank trains on in each batch."""

    def __init__(self):
        self.numbers = []

    def before_train_batch(self, state, logger):
        self.numbers.append(0 if state.is_placeholder else Batches().rows(state.batch))


def algorithm(name, arguments):
    return Registry.scan().load("algorithms", name)(**arguments)


def case_of(name):
    """Return the algorithms and the options of a case, see `NAMES`."""
    kind, what = name.split("/")
    if kind == "loop":
        return [], LOOPS[what]
    if kind == "sb":
        return [algorithm("selective_backprop", {**SB, **SB_CASES.get(what, {"scope": what})})], {}
    if kind == "mixed":
        return [algorithm(what, MIXED[what])], {"rows": 24}
    pair = [algorithm("selective_backprop", SB)] if kind == "pair" else []
    return [*pair, algorithm(what, ALONE[what])], {}


NAMES = [
    *(f"loop/{name}" for name in LOOPS),
    *(f"alone/{name}" for name in ALONE),
    *(f"sb/{name}" for name in SB_CASES),
    *(f"pair/{name}" for name in ALONE if name != "info_batch"),  # they exclude each other
    *(f"mixed/{name}" for name in MIXED),
]


@functools.cache
def digits(rows):
    """Return images (1, 8, 8), classes and numbers."""
    data = load_digits()
    images = torch.tensor(data.images[:rows], dtype=torch.float32)[:, None] / 16
    return TensorDataset(images, torch.tensor(data.target[:rows]), torch.arange(rows))


def run(name, **more):
    """Train a case for two epochs, and return what came out on this rank."""
    algorithms, options = case_of(name)
    options = {"rows": 29, "num_workers": 0, "lr": 0.05, "as_list": False, **options, **more}
    parts, model = digits(options.pop("rows")), make_model()
    loader = DataLoader(parts, batch_size=8, shuffle=True, num_workers=options.pop("num_workers"))
    if options.pop("as_list"):
        loader = list(DataLoader(parts, batch_size=8))
    logs, rows = Logs(), Rows()
    settings = {
        "optimizers": torch.optim.SGD(model.parameters(), lr=options.pop("lr"), momentum=0.9),
        "eval_dataloader": DataLoader(parts, batch_size=20),
        "algorithms": algorithms,
        "callbacks": rows,
        "loggers": logs,
        **options,
    }
    with trainer_of(model, loader, **settings) as trainer:
        trainer.fit()
        ranks = trainer.state.ranks
        saved = dict(algorithms[0].state_dict()) if algorithms else {}
        saved.pop("scoring_s", None)
        result = {
            "weights": {key: value.tolist() for key, value in model.state_dict().items()},
            "state": readable(saved),
        }
        result["alike"] = len(set(ranks.each(json.dumps(result)))) == 1
        return {**result, "logs": logs.rows, "rows": list(zip(*ranks.each(rows.numbers), strict=True))}


def readable(tree):
    """Return a tree of states as JSON has it."""
    if isinstance(tree, dict):
        return {str(key): readable(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [readable(value) for value in tree]
    if isinstance(tree, torch.Tensor):
        return tree.tolist()
    return tree if isinstance(tree, (bool, int, float, str)) else str(tree)


class Plus(nn.Module):
    """A block that adds 1."""

    def forward(self, x):
        return x + 1


class Watched(nn.Module):
    """Notes for each row how much of it is a hole, whether its block was dropped, and what dropout left of a 1."""

    def __init__(self):
        super().__init__()
        self.block, self.weight = Plus(), nn.Parameter(torch.zeros(2))
        self.seen = []

    def forward(self, x):
        holes = (x == 0).float().mean((1, 2, 3))
        dropped = (self.block(x) == x).float().mean((1, 2, 3))
        self.seen.append(torch.stack([holes, dropped, F.dropout(torch.ones(x.shape[0]), 0.4)], 1))
        return x.mean((1, 2, 3))[:, None] * self.weight


def draws(ranks):
    """Return the mean of each over all rows, and on how many ranks the first rows are alike."""
    blocks = {"targets": [Plus], "drop_rate": 0.4, "drop_distribution": "uniform"}
    algorithms = [algorithm("cutout", {"length": 0.5}), algorithm("stochastic_depth", blocks)]
    model, batch = Watched(), (torch.ones(100, 1, 8, 8), torch.zeros(100, dtype=torch.long))
    fit(model, [batch] * 8, max_duration="1ep", algorithms=algorithms, seed=5)
    seen, _ = ranks.gather(torch.cat(model.seen))
    firsts = ranks.each([column.tolist() for column in torch.cat(model.seen)[:20].T])
    apart = [len({str(column) for column in columns}) for columns in zip(*firsts, strict=True)]
    return {"rows": seen.shape[0], "means": seen.mean(0).tolist(), "apart": apart}


def main():
    out, *names = sys.argv[1:]
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "selective_backprop can't reuse")  # layers round differently for a single row
    results = {}
    for name in names or [*NAMES, "sb/rank"]:
        try:
            results[name] = run(name)
        except Exception as error:
            raise RuntimeError(f"case {name}") from error
    ranks = join(DDP(), "cpu")
    results["moves"], results["draws"] = wrong_moves(ranks), draws(ranks)
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
