"""The program of test_fsdp: trains a small transformer on all ranks with FSDP, and rank 0 writes what came out.

It also says what DistributedDataParallel gets from algorithms, and what becomes of BatchNorm. `run(name)` trains a case
in one process, which the others are compared with.
"""

import json
import os
import sys
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn import functional as F
from torch.utils.data import DataLoader

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, Loss
from engine_core.errors import UnsupportedError
from engine_core.parallel import FSDP, gathered, is_sharded

sys.path.insert(0, str(Path(__file__).parent))
from equality import ALONE, CARRIED, IGNORING, MIXED, SB, SB_CASES, algorithm, digits, mean_of_tokens
from trainers import Logs, fit, trainer_of

LAYER = "TransformerEncoderLayer"
REFUSED = ("sam", "gradient_clipping", "gradient_penalty", "layer_freezing", "layer_stacking", "zclip")
"""What needs more than FSDP offers."""
ELSEWHERE = ("ngram_embedding", "token_shift")  # the net has no embedding, and its norms are those of sums
LOOPS = {
    "plain": {},
    "clipping": {"grad_clip_norm": 0.1, "callbacks": ["gradient_norm"]},
    "microbatches": {"microbatch_size": 2},
    "mean of tokens": {"loss_fn": mean_of_tokens, "microbatch_size": 2},
    "sums": {"loss_fn": lambda o, t: Loss(F.cross_entropy(o, t, reduction="sum") / 10, None)},
    "ignored and weighted": {"loss_fn": IGNORING, "microbatch_size": 2},
    "fewer rows than ranks": {"rows": 17},
    "blocks in blocks": {"blocks": [LAYER, "TransformerEncoder", "Linear"]},
    "no blocks": {"blocks": []},
    "the model a block": {"blocks": ["Net", nn.TransformerEncoderLayer]},
    "whole between forward and backward": {"args": {"reshard_after_forward": False}},
    "tied weights": {"net": {"tied": True}},
    "a block that runs twice": {"net": {"twice": True}},
    "frozen weights": {"net": {"frozen": True}},
    "bfloat16": {"net": {"dtype": torch.bfloat16}},
    "its own loss": {"net": {"own_loss": True}},
    "an optimizer made before": {"given": True},
    "forwards between": {"peeks": True},
    "saves after evaluations": {"eval_interval": "2ba"},
    "compiled": {"algorithms": [("compile", {"backend": "eager"})], "rows": 16},
    "compiled blocks that are computed again": {
        "algorithms": [
            ("activation_checkpointing", {"blocks": [LAYER]}),
            ("compile", {"blocks": [LAYER], "backend": "aot_eager"}),
        ],
        "rows": 16,
    },
}
SAME_LAW = {
    "cutout": {},
    "rand_augment": {},
    "random_shift": {},
    "stochastic_depth": {"targets": [LAYER], "drop_rate": 0.5},
}
NAMES = [
    *(f"loop/{name}" for name in LOOPS),
    *(f"alone/{name}" for name in ALONE if name not in (*REFUSED, *ELSEWHERE)),
    *(f"sb/{name}" for name in ("composer", "stale", "uniform", "few", "reuse", "by a function")),
    *("sb/carried in microbatches", "pair/ema", "pair/gated_linear_units"),
    *(f"mixed/{name}" for name in MIXED),
]


class Net(nn.Module):
    """A small transformer for images of 8 x 8, whose rows don't see each other."""

    def __init__(self, *, tied=False, twice=False, frozen=False, dtype=None):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.MaxPool2d(2))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.mix, self.back, self.out = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.register_buffer("scale", torch.ones(8))
        if twice:
            self.body.layers[1] = self.body.layers[0]
        if tied:
            self.back.weight = self.mix.weight
        if frozen:
            self.stem.requires_grad_(False)
            self.body.layers[0].linear1.requires_grad_(False)
        self.to(dtype or torch.float32)

    def forward(self, x):
        tokens = self.stem(x.to(self.scale.dtype)).flatten(2).transpose(1, 2)  # (N, T, 8)
        hidden = self.norm(self.body(tokens)).mean(1) * self.scale
        return self.out(self.back(F.relu(self.mix(hidden)))).float()


class WithLoss(Net):
    """One with a loss of its own, which sees weights too, and an eval_forward that doesn't call the model."""

    def forward(self, batch):
        return super().forward(batch[0])

    def loss(self, outputs, batch):
        return {"of classes": F.cross_entropy(outputs, batch[1]), "of weights": self.out.weight.square().mean()}

    def eval_forward(self, batch):
        return super().forward(batch[0]), batch[1]


class Watch(Callback):
    """Counts the events of microbatches, and looks whether what is saved is what the model has."""

    every_rank = True

    def __init__(self, *, peeks, saves):
        self.counts = Counter()
        self.peeks, self.saves, self.saved_wrongly = peeks, saves, 0

    def before_forward(self, state, logger):
        self.counts["before_forward"] += 1

    def after_backward(self, state, logger):
        self.counts["after_backward"] += 1

    def after_train_batch(self, state, logger):
        assert not is_sharded(state.gradient_norm)
        if self.peeks:
            _forward(state)

    def batch_checkpoint(self, state, logger):
        if not self.saves or state.timestamp.batch != 2:
            return
        assert state.loop.snapshot is not None
        before = whole_weights(state.model)
        _forward(state)  # leaves the weights of the model itself whole
        content = state.loop.snapshot(whole=True) if state.ranks.is_sharded else state.loop.snapshot()
        self.saved_wrongly += sum(not torch.equal(content.model[name], value) for name, value in before.items())
        kept = [len(names) for entry in content.state["optimizers"] for names in entry["parameters"] if all(names)]
        self.saved_wrongly += kept != [len(list(state.model.parameters()))]


def _forward(state):
    model = state.model
    with torch.no_grad():
        model(state.batch if state.loss_fn is None else state.batch[0])


def whole_weights(model):
    return {name: gathered(v) if is_sharded(v) else v.clone() for name, v in model.state_dict().items()}


def case_of(name):
    """Return the algorithms and the options of a case, see `NAMES`."""
    kind, what = name.split("/")
    if kind == "loop":
        return [], LOOPS[what]
    if kind == "mixed":
        return [algorithm(what, MIXED[what])], {"rows": 16}
    if kind == "law":
        return [algorithm(what, SAME_LAW[what])], {}
    if name == "sb/carried in microbatches":
        return [algorithm("selective_backprop", {**SB, **CARRIED, "keep": 0.7})], {"microbatch_size": 2}
    if kind == "sb":
        return [algorithm("selective_backprop", {**SB, **SB_CASES[what]})], {}
    pair = [algorithm("selective_backprop", SB)] if kind == "pair" else []
    return [*pair, algorithm(what, ALONE[what])], {}


def model_of(options):
    kinds = dict(options.pop("net", {}))
    return (WithLoss if kinds.pop("own_loss", False) else Net)(**kinds)


def run(name, **more):
    """Train a case for two epochs, and return what came out on this rank."""
    algorithms, options = case_of(name)
    options = {**options, **more}
    model, data = model_of(options), digits(options.pop("rows", 21))
    spread = FSDP(options.pop("blocks", [LAYER]), args=options.pop("args", {}))
    optimizers = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    if options.pop("given", False):
        body = list(model.body.parameters())
        others = [p for p in model.parameters() if all(p is not other for other in body)]
        optimizers = optimizers([{"params": body, "lr": 0.02}, {"params": others}])
        model(data[:8][0]).square().mean().backward()
        optimizers.step()  # so that it has a state
        optimizers.zero_grad()
    logs, watch = Logs(), Watch(peeks=options.pop("peeks", False), saves="eval_interval" in options)
    settings = {
        "loss_fn": None if isinstance(model, WithLoss) else options.pop("loss_fn", nn.CrossEntropyLoss()),
        "optimizers": optimizers,
        "eval_dataloader": {"a": DataLoader(data, batch_size=20), "b": DataLoader(data, batch_size=17)},
        "algorithms": algorithms,
        "callbacks": [watch, *options.pop("callbacks", [])],
        "loggers": logs,
        "parallel": spread if "RANK" in os.environ else None,
        **options,
    }
    with trainer_of(model, DataLoader(data, batch_size=8, shuffle=True), **settings) as trainer:
        trainer.fit()
        state = trainer.state
        result = {
            "is_sharded": all(map(is_sharded, model.parameters())),  # also after the evaluation with which it ends
            "weights": {key: value.float().tolist() for key, value in whole_weights(model).items()},
            "logs": logs.rows,
            "saved_wrongly": watch.saved_wrongly,
            "is_the_model": state.model is model,
        }
        result["alike"] = len(set(state.ranks.each(json.dumps([result["weights"], logs.rows])))) == 1
        result["counts"] = state.ranks.each(dict(watch.counts))
    return result


def refused():
    """Return the errors of algorithms that need what FSDP does not offer, and whether the model is as it was."""
    found = {}
    for name in (*REFUSED, "channels_last"):
        model = Net()
        before = [*map(type, model.modules())]
        try:
            trainer_of(model, algorithms=[algorithm(name, {})], parallel=FSDP([LAYER]))
        except UnsupportedError as error:
            found[name] = [str(error), before == [*map(type, model.modules())]]
    return found


INPUTS, TARGETS = torch.linspace(-1, 1, 64).view(16, 4), torch.arange(16) % 3


class Branches(nn.Module):
    """A model with a layer that only some batches need."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.more, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.more(x) if x.detach().mean() > self.first.bias.detach().mean() else x)


class Skips(Algorithm):
    """Says that parameters may be without a gradient."""

    metadata = AlgorithmMetadata(name="skips", description="says so", events=(Event.INIT,))
    find_unused_parameters = True

    def match(self, event, state):
        return True

    def apply(self, event, state, logger=None): ...


def _fit(model, **settings):
    batches = [(INPUTS[start : start + 4], TARGETS[start : start + 4]) for start in range(0, 16, 4)]
    return fit(model, batches, **{"seed": 1, **settings})


def with_unused():
    """Return the weights of a model, of which some batches train only a part."""
    found = {}
    for size in (None, 1):
        model = Branches()
        _fit(model, algorithms=[Skips()], microbatch_size=size)
        found[str(size)] = {name: value.tolist() for name, value in model.state_dict().items()}
    return found


class Statistics(Callback):
    """Keeps the running statistics of this rank before a step, of all in an evaluation, and what is saved and left."""

    every_rank = True

    def after_backward(self, state, logger):
        self.own = _buffers(state)
        self.own["1.num_batches_tracked"] += state.rank  # as if ranks had counted differently
        self.own["queue"] = nn.functional.normalize(torch.tensor([1.0, state.rank]), dim=0)  # of a rank's own rows
        state.model.load_state_dict(self.own, strict=False)

    def eval_batch_start(self, state, logger):
        self.seen = _buffers(state)

    def batch_checkpoint(self, state, logger):
        if state.timestamp.batch == 5:
            state.loop.snapshot()
            self.saved = _evaluated(state)

    def fit_end(self, state, logger):
        self.left = _evaluated(state)


def _buffers(state):
    return {name: value.clone() for name, value in state.model.named_buffers()}


def _evaluated(state):
    """Return the buffers that an evaluation uses: those of an average, if there is one."""
    own = _buffers(state)
    averages = [algorithm.averaged_state_dict() for algorithm in state.algorithms]
    return {name: averages[0][name] for name in own} if averages else own


def with_batch_norm(algorithms=(), parallel="auto"):
    """Return the statistics of each rank before a step and in an evaluation, and the warnings of each."""
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), Statistics()
    model.register_buffer("queue", torch.zeros(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        more = {"callbacks": [seen], "eval_dataloader": [(INPUTS, TARGETS)], "parallel": parallel}
        trainer = _fit(model, algorithms=algorithms, **more)
    told = [str(each.message) for each in caught if "BatchNorm" in str(each.message)]
    found = {part: {k: v.tolist() for k, v in getattr(seen, part).items()} for part in ("own", "seen", "saved", "left")}
    return {"ranks": trainer.state.ranks.each({**found, "told": told})}


def with_averaged_batch_norm():
    """Return the same where an average is evaluated, for each way to spread the model."""
    return {way: with_batch_norm([("ema", {"warmup": False})], way)["ranks"] for way in ("ddp", "fsdp")}


def with_mixed_precision():
    """Return the dtypes in a forward, of the weights and of the loss, with FSDP's policy of mixed precision."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    seen = set()
    model[1].register_forward_hook(lambda _, inputs, outputs: seen.update((inputs[0].dtype, outputs.dtype)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    trainer = _fit(model, parallel=FSDP(args={"mp_policy": policy}))
    weights = {str(parameter.dtype) for parameter in model.parameters()}
    return {"forward": [*map(str, seen)], "weights": [*weights], "loss": trainer.state.loss.item()}


def main():
    out, *names = sys.argv[1:]
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "selective_backprop can't reuse")  # layers round differently for a single row
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # where a Linear is a block
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")  # torch's compiler asks for it
    results = {}
    made = (refused, with_unused, with_batch_norm, with_averaged_batch_norm, with_mixed_precision)
    others = {make.__name__: make for make in made}
    for name in names or [*NAMES, *(f"law/{name}" for name in SAME_LAW), *others]:
        try:
            results[name] = others[name]() if name in others else run(name)
        except Exception as error:
            raise RuntimeError(f"case {name}") from error
    if os.environ["RANK"] == "0":
        Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
