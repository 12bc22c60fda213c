"""The kinds of step that are compared, and the clock that compares them."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any

import torch
from nets import NETS, Net

from engine_core import Engine, Event, Logger, State
from engine_core.batch import Batches
from sb_plugin import SelectiveBackprop
from sb_plugin.select import draw_rows, number_kept

__all__ = ["KEEPS", "KINDS", "costs_of_steps"]

KEEPS = (0.25, 0.5, 0.75)
CYCLE = 3
"""One in this many steps of the stale kind scores all rows."""
SELECTIVE: dict[str, dict[str, Any]] = {
    "selective": {},
    "eval+bf16": {"bn": "eval", "precision": "bf16"},
    "carried": {"scorer": "carried", "index_key": 2},
    "stale": {"scorer": "stale", "index_key": 2, "refresh": CYCLE},
    "reuse": {"reuse": "on"},
    "uniform": {"selector": "uniform"},
}
KINDS = (
    "vanilla",
    "inactive",
    "recording",
    *(f"{k} {keep}" for k in ("kept", "ideal", *SELECTIVE, "drawing") for keep in KEEPS),
)
Step = Callable[[], object]


def costs_of_steps(
    name: str, processes: int, rounds: int, wanted: Collection[str] = (), device: str = "cpu"
) -> dict[str, list[list[float]]]:
    """Return the seconds of each kind of step of a net in each round of each process, by its name.

    Args:
        processes: how many new ones, one after another.
        wanted: kinds, with or without their keep; none: all that the net has. Vanilla steps are always included.
        device: on the CPU the seconds are those of the process, elsewhere those until the device is idle.
    """
    costs = [_costs_elsewhere(name, rounds, wanted, device) for _ in range(processes)]
    return {kind: [cost[kind] for cost in costs] for kind in costs[0]}


def _costs_elsewhere(name: str, rounds: int, wanted: Collection[str], device: str) -> dict[str, list[float]]:
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_costs, args=(sender, name, rounds, wanted, device), daemon=True)
    process.start()
    sender.close()  # leaves the other end to the process alone, so that its death is noticed
    try:
        costs: dict[str, list[float]] = receiver.recv()
    except EOFError:
        sys.exit(f"a process that measured {name} has died")
    process.join()
    return costs


def _send_costs(sender: Connection, name: str, rounds: int, wanted: Collection[str], device: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = NETS[name]().moved(device)
    recording = SelectiveBackprop(0.5, 0.9, scale_factor=1, scorer="carried", index_key=2)
    steps: dict[str, Step] = {
        "vanilla": partial(plain_step, net, net.batch),
        "inactive": engine_step(net, inactive()),
        "recording": engine_step(net, recording),
    }
    has_norms = any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in net.model.modules())  # noqa: SLF001
    for keep in KEEPS:
        kept = tuple(tensor[: int(keep * len(tensor))].clone() for tensor in net.batch)
        steps[f"kept {keep}"] = partial(plain_step, net, kept)
        steps[f"ideal {keep}"] = partial(ideal_step, net, kept)
        for kind, arguments in SELECTIVE.items():
            if kind != "reuse" or not has_norms:
                steps[f"{kind} {keep}"] = engine_step(net, selective(keep, **arguments))
        steps[f"drawing {keep}"] = drawing(net, keep)
    wanted = {*(wanted or steps), "vanilla"}
    steps = {name: step for name, step in steps.items() if {name, name.split()[0]} & wanted}
    sender.send(measure(steps, rounds, device))


def selective(keep: float, **arguments: Any) -> SelectiveBackprop:
    """Return an algorithm that is active in each step."""
    return SelectiveBackprop(start=0, end=1, keep=keep, scale_factor=1, interrupt=0, **arguments)


def inactive() -> SelectiveBackprop:
    """Return an algorithm that is never active, as the clock of these steps does not move."""
    return SelectiveBackprop(start=0.5, end=0.9, scale_factor=1)


def plain_step(net: Net, batch: tuple[torch.Tensor, ...]) -> None:
    """Train on a batch."""
    net.optimizer.zero_grad()
    net.loss_fn(net.model(batch[0]), batch[1]).backward()
    net.optimizer.step()


def ideal_step(net: Net, kept: tuple[torch.Tensor, ...]) -> None:
    """Score all rows, ignore the scores, and train on the given rows."""
    with torch.no_grad():
        net.model(net.batch[0])
    plain_step(net, kept)


def engine_step(net: Net, algorithm: SelectiveBackprop) -> Step:
    """Return a step that fires the events between the loader and the loss."""
    state = State(model=net.model, algorithms=[algorithm], loss_fn=net.loss_fn, seed=1, max_duration="10ba")
    engine = Engine(state, Logger())
    engine.run_event(Event.INIT)
    fire = engine.run_event

    def step() -> None:
        state.batch = net.batch
        fire(Event.AFTER_DATALOADER)
        net.optimizer.zero_grad()
        fire(Event.BEFORE_TRAIN_BATCH)
        fire(Event.BEFORE_FORWARD)
        state.outputs = net.model(state.batch[0])
        fire(Event.AFTER_FORWARD)
        state.loss = net.loss_fn(state.outputs, state.batch[1])
        fire(Event.AFTER_LOSS)
        state.loss.backward()
        net.optimizer.step()
        state.outputs = state.loss = None

    return step


def drawing(net: Net, keep: float) -> Step:
    """Return only the draw."""
    n = len(net.batch[0])
    generator, losses, k = torch.Generator(), torch.rand(n), number_kept(n, keep)
    return lambda: Batches().part(net.batch, draw_rows(losses, k, keep, generator))


def time_s(device: str) -> float:
    """Return the CPU time of the process, or the time when another device has nothing left to do."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(steps: dict[str, Step], rounds: int, device: str) -> dict[str, list[float]]:
    """Return the seconds of each kind in each round, taken in turns in a new random order."""
    asker = parent_process()
    assert asker is not None
    names, order = list(steps), random.Random(0)  # noqa: S311  not for secrets
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-3, rounds):
        if not asker.is_alive():  # else this would run on unseen for minutes beside the next measurement
            sys.exit("the process that asked for these figures has ended")
        order.shuffle(names)
        for name in names:
            times = CYCLE if name.startswith("stale") else 1
            start_s = time_s(device)
            for _ in range(times):
                steps[name]()
            if turn >= 0:
                seconds[name].append((time_s(device) - start_s) / times)
    return seconds
