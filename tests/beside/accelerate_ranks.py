"""What several processes see in a loop with Accelerate: each of them trains in several ways."""

import json
import tempfile
from pathlib import Path

import torch
from accelerate import DataLoaderConfiguration, DistributedDataParallelKwargs
from accelerate.utils import broadcast_object_list, gather_object

from engine_core import Callback
from engine_core.errors import UnsupportedError

from .accelerate_runs import Run, make_accelerator, train_words
from .cases import SB, make_algorithms, make_data

Loader = torch.utils.data.DataLoader


def loaders(rows=32, batch=4):
    """Return one for training and one for evaluation."""
    data = make_data(rows=rows + 8)
    train, held = torch.utils.data.Subset(data, range(rows)), torch.utils.data.Subset(data, range(rows, rows + 8))
    return Loader(train, batch_size=batch), Loader(held, batch_size=4)


def at(event, call):
    """Return a callback of every rank that makes this call at one event."""
    return type("At", (Callback,), {event: lambda self, state, logger: call(state)})()


def weights(run):
    """Return a number for each parameter, which differs if it does."""
    return [p.detach().double().sum().item() for p in run.net.parameters()]


def surgery():
    """Modules are replaced before DDP, rows are cut elsewhere on each rank, weights and averages stay the same."""
    seen = []
    names = ("squeeze_excite", "stochastic_depth", "cutout", "ema")
    algorithms = [one for name in names for one in make_algorithms(name)]
    run = Run(
        algorithms,
        seed=None,
        accelerator=make_accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]),
        loaders=loaders(),
        callbacks=[at("after_dataloader", lambda state: seen.append((state.batch[0] == 0).flatten().tolist()))],
    )
    with run.fit():
        run.epoch(Loader(make_data(rows=8), batch_size=4))  # the same rows on each rank
        run.evaluate()
    averages = algorithms[-1].averaged_state_dict() or {}
    return {
        "weights": weights(run),
        "averages": [averages[name].double().sum().item() for name, _ in run.net.named_parameters()],
        "wrapped": type(run.model).__name__,
        "cut": seen,
        "seed": run.state.seed,
        "ranks": [run.state.rank, run.state.world_size, run.state.ranks.size],
        "clock": run.state.timestamp[:3],
    }


def averaged(steps=1):
    """Gradients are those of the rows of all processes, clipped together; so are samples."""
    run = Run("label_smoothing", accelerator=make_accelerator(steps), loaders=loaders(), max_grad_norm=0.5)
    with run.fit():
        run.epoch()
    return {"weights": weights(run), "clock": run.state.timestamp[:3]}


def words(steps=1):
    """Places that count are uneven between processes, and between the batches of a step."""
    weights, clock = train_words(steps)
    return {"weights": weights, "clock": clock}


def refused():
    """Rows can't be chosen among those of all processes, and DDP waits for frozen layers."""
    said = {}
    for case in ("selective_backprop", "layer_freezing"):
        try:
            Run(case)
        except UnsupportedError as error:
            said[case] = str(error).partition(": ")[2]
    return said


def chosen():
    """In each process rows are chosen among its own."""
    kept = []
    run = Run(
        [("selective_backprop", {**SB, "scope": "rank"})],
        loaders=loaders(),
        callbacks=[at("before_forward", lambda state: kept.append(len(state.batch[0])))],
    )
    with run.fit():
        run.epoch()
    return {"weights": weights(run), "kept": kept}


def frozen():
    """Layers stop training where DDP looks for parameters without gradients."""
    ddp = DistributedDataParallelKwargs(find_unused_parameters=True)
    run = Run("layer_freezing", accelerator=make_accelerator(kwargs_handlers=[ddp]), loaders=loaders())
    with run.fit():
        run.epoch()
        run.epoch()
    return {"weights": weights(run), "trains": [p.requires_grad for p in run.net.parameters()]}


def asked_by_one():
    """What rank 1 asks for alone, both do."""
    seen = []
    rank = make_accelerator().process_index
    run = Run(
        loaders=loaders(),
        callbacks=[
            at("after_train_batch", lambda state: rank and state.timestamp.batch == 1 and state.skip_step()),
            at("batch_end", lambda state: rank and state.timestamp.batch == 3 and state.stop_training()),
            at("batch_end", lambda state: seen.append(weights(run))),
        ],
    )
    with run.fit():
        run.epoch()
        run.epoch()
    late = Run(loaders=loaders(), callbacks=[at("epoch_checkpoint", lambda state: rank and state.stop_training())])
    with late.fit():
        late.epoch()
        stops = late.state.loop.stop_requested  # here the user's loop asks
    skipped = seen[0] == seen[1] != seen[2]
    return {"weights": weights(run), "clock": run.state.timestamp[:3], "skipped": skipped, "stops": stops}


def uneven():
    """Accelerate repeats rows so that all processes have as many; with a dispatcher, one process reads them."""
    clocks = []
    for dispatches in (False, True):
        config = DataLoaderConfiguration(dispatch_batches=dispatches)
        run = Run("ema", accelerator=make_accelerator(dataloader_config=config), loaders=loaders(rows=13))
        with run.fit():
            run.epoch()
        clocks.append([*run.state.timestamp[:3], run.state.dataloader_len])
    return {"weights": weights(run), "clocks": clocks}


def resumed():
    """A run that is resumed on as many processes is the uninterrupted one."""
    folder = Path(broadcast_object_list([tempfile.mkdtemp()])[0])
    found = []
    for epochs, load in ((2, False), (1, False), (2, True)):
        run = Run("ema", loaders=loaders())
        if load:
            run.accelerator.load_state(folder)
        run.train(epochs)
        found.append(weights(run))
        if epochs == 1:
            run.accelerator.save_state(folder)
    return {"weights": found[2], "whole": found[0]}


def main(path):
    """Run all, and let rank 0 write what each rank returns."""
    found = {run.__name__: run() for run in (surgery, averaged, refused, chosen, frozen, asked_by_one, uneven, resumed)}
    found |= {"accumulated": averaged(2), "words": words(), "words of two": words(2)}
    together = gather_object([found])
    accelerator = make_accelerator()
    if accelerator.is_main_process:
        path.write_text(json.dumps(together), encoding="utf-8")
    accelerator.wait_for_everyone()
    accelerator.end_training()  # a process that just ends may abort in gloo's threads
