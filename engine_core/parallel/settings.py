"""How a run is spread over processes, as the user says it. Reads the environment that torchrun sets, joins nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from ..errors import ArgumentError, ArgumentTypeError, did_you_mean
from ..ranks import Ranks
from ..time import Interval, Time, TimeUnit

_DATA = ("global", "local")


@dataclass(frozen=True)
class DDP:
    """Each process has the whole model; `DistributedDataParallel` adds up the gradients.

    Args:
        data: `global`: loaders are those of one process, and each rank takes its rows of every batch. `local`: each
            loader, those of evaluations too, gives this rank's rows only.
        timeout: how long a rank waits for the others before the run ends with an error, such as `"10m"`.
        args: for `torch.nn.parallel.DistributedDataParallel`, as they are.

    Example:
        >>> DDP(timeout="90sec", args={"gradient_as_bucket_view": True}).timeout
        '90sec'
    """

    data: Literal["global", "local"] = "global"
    timeout: Time | str = "10m"
    args: Mapping[str, Any] = field(default_factory=dict)
    name: ClassVar[str] = "ddp"

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class FSDP:
    """Each process has a part of each weight, of its gradient and of its optimizer's state; see torch's `fully_shard`.

    Args:
        blocks: classes of modules, or their names, whose weights are gathered together, such as a transformer's layers.
        data: as in `DDP`.
        timeout: as in `DDP`.
        args: for `torch.distributed.fsdp.fully_shard`, as they are.

    Example:
        >>> FSDP(blocks=["TransformerEncoderLayer"]).name
        'fsdp'
    """

    blocks: Sequence[type | str] = ()
    data: Literal["global", "local"] = "global"
    timeout: Time | str = "10m"
    args: Mapping[str, Any] = field(default_factory=dict)
    name: ClassVar[str] = "fsdp"

    def __post_init__(self) -> None:
        if isinstance(self.blocks, (str, type)) or not isinstance(self.blocks, Sequence):
            raise ArgumentTypeError(f"FSDP: blocks is a list of classes or their names, not {self.blocks!r}")
        for block in self.blocks:
            if not isinstance(block, (str, type)):
                raise ArgumentTypeError(f"FSDP: a block is a class or its name, not {block!r}")
        _check(self)


Parallel: TypeAlias = DDP | FSDP

_KINDS: dict[str, type[Parallel]] = {"ddp": DDP, "fsdp": FSDP}


def timeout_s(parallel: Parallel) -> float:
    """Return how long a rank waits for the others, in seconds."""
    return float(Time(parallel.timeout).value)


def spread_of(given: object) -> Parallel | None:
    """Return what `Trainer(parallel=...)` means in this process; None: it trains alone.

    `auto` is DDP where torchrun started several processes. A mapping is what a config says: `name` and arguments.
    Ranks that are there already, such as threads in a test, have a `wrap(model)` that stands in for DDP.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for what can't work, and for `ddp` or `fsdp`
            outside of torchrun.
    """
    if isinstance(given, Mapping):
        given = _of_mapping(given)
    if given is None or (given == "auto" and started() == 1):
        return None
    if isinstance(given, Ranks) and hasattr(given, "wrap"):
        return DDP()
    if isinstance(given, (DDP, FSDP)):
        parallel = given
    elif given == "auto":
        parallel = DDP()
    elif isinstance(given, str) and given in _KINDS:
        parallel = _KINDS[given]()
    elif isinstance(given, str):
        known = ["auto", *_KINDS]
        raise ArgumentError(f"parallel is 'auto', 'ddp', 'fsdp' or None, not {given!r}{did_you_mean(given, known)}")
    else:
        raise ArgumentTypeError(
            f"parallel is 'auto', 'ddp', 'fsdp', DDP(...), FSDP(...) or None, not {given!r}{_meant(given)}"
        )
    if "RANK" not in os.environ and not has_group():
        raise ArgumentError(
            f"parallel={parallel.name!r} needs the processes that torchrun starts: "
            f"torchrun --nproc-per-node 2 {command_line()}, or give parallel=None for one process"
        )
    return parallel


def started() -> int:
    """Return how many processes were started together: those of the process group, or else of torchrun."""
    if has_group():
        import torch.distributed as dist  # noqa: PLC0415  one process does without

        return dist.get_world_size()
    try:
        return int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise ArgumentError(f"the environment has WORLD_SIZE={os.environ['WORLD_SIZE']!r}, not a number") from None


def has_group() -> bool:
    """Is this process in a process group?"""
    dist: Any = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def command_line() -> str:
    """Return how this program was started, for a message that shows it under torchrun."""
    script = sys.argv[0]
    return (
        "-m engine_core train CONFIG.yaml" if not script or script.endswith(("engine-core", "__main__.py")) else script
    )


def _meant(given: object) -> str:
    """Return what to write instead of a class."""
    if given in (DDP, FSDP):
        return f"; write {given.__name__}()"
    theirs = {"DistributedDataParallel": "DDP()", "FullyShardedDataParallel": "FSDP(blocks=[...])"}
    name = getattr(given, "__name__", type(given).__name__)
    return f"; write {theirs[name]} of engine_core.parallel" if name in theirs else ""


def _of_mapping(given: Mapping[Any, Any]) -> Parallel:
    arguments = dict(given)
    name = arguments.pop("name", None)
    if name not in _KINDS:
        raise ArgumentError(f"parallel: name is 'ddp' or 'fsdp', not {name!r}")
    try:
        return _KINDS[name](**arguments)
    except TypeError as error:
        raise ArgumentTypeError(f"parallel: {error}") from error


def _check(parallel: Parallel) -> None:
    kind = type(parallel).__name__
    if parallel.data not in _DATA:
        raise ArgumentError(f"{kind}: data is 'global' or 'local', not {parallel.data!r}")
    if Interval(parallel.timeout, f"{kind}: timeout").length.unit is not TimeUnit.SECOND:
        raise ArgumentError(f"{kind}: timeout={str(parallel.timeout)!r} has to be a time, such as '10m'")
    if not isinstance(parallel.args, Mapping):
        raise ArgumentTypeError(f"{kind}: args maps names to values, not {parallel.args!r}")
