"""How a run is spread over processes, as the user says it, and what can't be spread. Joins nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

import torch
from packaging.version import Version

from ..errors import ArgumentError, ArgumentTypeError, did_you_mean
from ..messages import warn
from ..ranks import Ranks
from ..time import Interval, Time, TimeUnit

LOWEST_FOR_FSDP = "2.13"
"""The lowest torch with which FSDP was tried here."""
_SPREAD = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
"""Classes of modules that are wrapped or sharded already."""


@dataclass(frozen=True)
class Parallel:
    """What DDP and FSDP have in common; see DDP."""

    _: KW_ONLY
    data: Literal["global", "local"] = "global"
    timeout: Time | str = "10m"
    args: Mapping[str, Any] = field(default_factory=dict)
    name: ClassVar[str]

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.data not in ("global", "local"):
            raise ArgumentError(f"{kind}: data is 'global' or 'local', not {self.data!r}")
        if Interval(self.timeout, f"{kind}: timeout").length.unit is not TimeUnit.SECOND:
            raise ArgumentError(f"{kind}: timeout={str(self.timeout)!r} has to be a time, such as '10m'")

    @property
    def timeout_s(self) -> float:
        """How long a rank waits for the others, in seconds."""
        return float(Time(self.timeout).value)


@dataclass(frozen=True)
class DDP(Parallel):
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

    name: ClassVar[str] = "ddp"


@dataclass(frozen=True)
class FSDP(Parallel):
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
    name: ClassVar[str] = "fsdp"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.blocks, (str, type)):
            raise ArgumentTypeError(f"FSDP: blocks is a list of classes or their names, not {self.blocks!r}")


KINDS: dict[str, type[Parallel]] = {"ddp": DDP, "fsdp": FSDP}


def spread_of(given: object) -> Parallel | None:
    """Return what `Trainer(parallel=...)` means in this process; None: it trains alone.

    `auto` is DDP where torchrun started several processes. Ranks that are there already, such as threads in a test,
    have a `wrap(model)` that stands in for DDP.
    """
    if given is None or (given == "auto" and started() == 1):
        return None
    if isinstance(given, Ranks) and hasattr(given, "wrap"):
        return DDP(data="local" if given.is_local else "global")
    if isinstance(given, Parallel):
        parallel = given
    elif isinstance(given, str) and given in ("auto", *KINDS):
        parallel = KINDS["ddp" if given == "auto" else given]()
    else:
        hint = did_you_mean(given, ["auto", *KINDS]) if isinstance(given, str) else ""
        if isinstance(given, type) and issubclass(given, Parallel):
            hint = f"; write {given.__name__}()"
        kind = ArgumentError if isinstance(given, str) else ArgumentTypeError
        raise kind(f"parallel is 'auto', 'ddp', 'fsdp', DDP(...), FSDP(...) or None, not {given!r}{hint}")
    if "RANK" not in os.environ and not has_group():
        script = sys.argv[0]
        is_command = not script or script.endswith(("engine-core", "__main__.py"))
        raise ArgumentError(
            f"parallel={parallel.name!r} needs the processes that torchrun starts: torchrun --nproc-per-node 2 "
            f"{'-m engine_core train CONFIG.yaml' if is_command else script}, or give parallel=None for one process"
        )
    return parallel


def started() -> int:
    """Return how many processes were started together: those of the process group, or else of torchrun."""
    return torch.distributed.get_world_size() if has_group() else int(os.environ.get("WORLD_SIZE", "1"))


def has_group() -> bool:
    """Is this process in a process group?"""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def check_spread(model: torch.nn.Module, parallel: Parallel | None, precision: str) -> None:
    """Raise if this model, or this kind of run, can't be spread over the processes that were started."""
    if started() == 1:
        return
    if parallel is None:
        _say_that_each_is_alone()
        return
    for name, module in model.named_modules():
        if found := [cls.__name__ for cls in type(module).__mro__ if cls.__name__ in _SPREAD]:
            raise ArgumentError(
                f"{f'its {name!r}' if name else 'the model'} is spread by {found[-1]} already: give the plain module, "
                "which the Trainer spreads itself"
            )
    if type(model).__name__ == "OptimizedModule":
        raise ArgumentError(
            "the model is what torch.compile(model) returned, whose weights have other names: call model.compile(), "
            "which compiles in place, and give the model"
        )
    for name, tensor in model.named_parameters():
        if torch.nn.parameter.is_lazy(tensor):
            raise ArgumentError(f"{name} has no shape yet: run the model on one batch before it goes to the Trainer")
    if isinstance(parallel, FSDP):
        check_torch(torch.__version__)
        if precision == "amp_fp16":
            raise ArgumentError(
                "precision 'amp_fp16' does not work with FSDP: torch's GradScaler looks at a rank's part of the "
                "gradients only; use 'amp_bf16', or parallel='ddp'"
            )


def _say_that_each_is_alone() -> None:
    if os.environ.get("RANK", "0") == "0":
        warn(
            f"parallel=None: each of the {started()} processes trains a model of its own, and writes the same files; "
            "parallel='auto' trains one together",
            UserWarning,
        )


def check_torch(version: str) -> None:
    """Raise if this torch is older than the lowest with which FSDP was tried."""
    if Version(version).release[:2] < Version(LOWEST_FOR_FSDP).release:
        raise ArgumentError(
            f"FSDP needs torch {LOWEST_FOR_FSDP} or newer, and this is {version}: pip install -U torch, or use "
            "parallel='ddp'"
        )
