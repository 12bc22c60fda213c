"""Ranks that are threads of one process: what several ranks tell each other, without starting any."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch

from engine_core.errors import RankError
from engine_core.parallel import Wrapping, on_cpu, placeholder_of, shared_buffers, written
from engine_core.randomness import GlobalGenerators, preserve_generators
from engine_core.ranks import Deal, Ranks

T = TypeVar("T")
_CPU = torch.device("cpu")


class ThreadRanks(Ranks):
    """One of several ranks that run in threads; a rank that waits in vain fails, and says for what.

    They take turns: one runs until it waits for the others, so that a program does the same each time. Each has global
    random generators of its own. They share whatever is not made by each of them. A Trainer takes a rank as `parallel`,
    and a model that its rank has made.

    Example:
        >>> ThreadRanks.run(lambda ranks: ranks.sum(ranks.rank + 1), size=3)
        [6.0, 6.0, 6.0]
    """

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.size = rank, meeting.size
        self._meeting = meeting

    @classmethod
    def run(cls, program: Callable[[ThreadRanks], T], size: int = 2, timeout_s: float = 30.0) -> list[T]:
        """Call `program` on each rank, in turns, and return what each returned.

        Raises:
            RankError: if the ranks call different methods, or one calls none. Other exceptions as they are.
        """
        meeting = _Meeting(size, timeout_s)
        threads = [threading.Thread(target=meeting.attend, args=(program, cls(rank, meeting))) for rank in range(size)]
        with preserve_generators(_CPU):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if meeting.errors:
            raise meeting.errors[0]
        return [meeting.returned[rank] for rank in range(size)]

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """Return the rows (n, ...) of all ranks in the order of the global batch, and where this rank's are."""
        parts = self._meeting.exchange("gather", self.rank, rows.detach().clone())
        if len(shapes := {(part.dtype, part.shape[1:]) for part in parts}) > 1:
            raise RankError(f"the ranks gather rows that differ in more than their number: {shapes}")
        start = sum(len(part) for part in parts[: self.rank])
        return torch.cat(parts), slice(start, start + len(rows))

    def table(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of each rank, as float64: counts are exact up to 2**53."""
        table = self._meeting.exchange("table", self.rank, [float(number) for number in numbers])
        if len({len(row) for row in table}) > 1:
            raise RankError(f"the ranks give tables of different lengths: {table}")
        return [[*row] for row in table]

    def first(self, value: Any) -> Any:
        """Return rank 0's value."""
        sent = self._meeting.exchange("first", self.rank, b"" if self.rank else pickle.dumps(on_cpu(value)))
        return pickle.loads(sent[0]) if self.rank else value  # noqa: S301  of another thread

    def each(self, value: Any) -> list[Any]:
        """Return the value of each rank."""
        sent = self._meeting.exchange("each", self.rank, pickle.dumps(on_cpu(value)))
        return [pickle.loads(of_rank) for of_rank in sent]  # noqa: S301  likewise

    def parts(self, batch: Any, rows: int, *, moves: bool = True) -> tuple[list[int], Deal]:
        """Return each rank's number of rows, and a function that takes of its own the chosen ones: none is sent."""
        counts = [int(count) for (count,) in self.table([rows])]
        start = sum(counts[: self.rank])

        def deal(index: torch.Tensor) -> tuple[Any, bool]:
            own = [row - start for row in index.tolist() if start <= row < start + rows]
            if not own:
                return placeholder_of(batch, self.batches), True
            return self.batches.part(batch, torch.tensor(own)), False

        return counts, deal

    def wrap(self, model: torch.nn.Module) -> Wrapping:
        """Give the model rank 0's weights, and let its gradients become the mean over the ranks."""
        return _Averaged(model, self)


class _Averaged(Wrapping):
    """A model of each rank, whose gradients are averaged as DistributedDataParallel averages them."""

    def __init__(self, model: torch.nn.Module, ranks: Ranks) -> None:
        super().__init__(model)
        self._ranks = ranks
        self._take_from_first([written(tensor.detach()) for tensor in (*model.parameters(), *model.buffers())])

    def until_last(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context that averages the gradients after the last microbatch."""
        return self._averaging() if is_last else nullcontext()

    @torch.no_grad()
    def mean_buffers(self) -> None:
        """Let running statistics be the mean over ranks, and other buffers rank 0's."""
        statistics, others = shared_buffers(self.model)
        self._take_from_first(others)
        of_ranks = self._ranks.each([buffer.clone() for buffer in statistics])
        for buffer, *own in zip(statistics, *of_ranks, strict=True):
            buffer.copy_(torch.stack(own).double().mean(0))

    def _take_from_first(self, tensors: list[torch.Tensor]) -> None:
        for tensor, of_first in zip(tensors, self._ranks.first([each.clone() for each in tensors]), strict=True):
            tensor.copy_(of_first)

    @contextmanager
    def _averaging(self) -> Iterator[None]:
        yield
        parameters = list(self.model.parameters())
        of_ranks = self._ranks.each([None if p.grad is None else p.grad.detach() for p in parameters])
        for parameter, grads in zip(parameters, zip(*of_ranks, strict=True), strict=True):
            if (found := [grad for grad in grads if grad is not None]) != []:
                parameter.grad = torch.stack(found).sum(0) / self._ranks.size


class _Meeting:
    """Where the ranks meet: each puts something down, and takes what all have put down."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size, self._timeout_s = size, timeout_s
        self.returned: dict[int, Any] = {}
        self.errors: list[BaseException] = []
        self._changed = threading.Condition()
        self._calls: dict[int, tuple[str, Any]] = {}
        self._ended: set[int] = set()
        self._taken: list[Any] = []
        self._round, self._problem, self._turn = 0, "", 0
        self._generators = GlobalGenerators.capture(_CPU)

    def attend(self, program: Callable[[Any], Any], ranks: ThreadRanks) -> None:
        """Run the program of one rank, and let no other wait for it afterwards."""
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._turn == ranks.rank or self._problem)
            self._generators.restore()
            self.returned[ranks.rank] = program(ranks)
        except BaseException as error:  # noqa: BLE001  it is raised where the ranks were started
            self.errors.append(error)
        with self._changed:
            self._ended.add(ranks.rank)
            self._settle()
            self._pass_on()

    def exchange(self, method: str, rank: int, value: Any) -> list[Any]:
        """Return what all ranks give to the same method."""
        own = GlobalGenerators.capture(_CPU)

        def is_next() -> bool:
            return bool(self._problem) or (self._round > now and self._turn == rank)

        with self._changed:
            now = self._round
            self._calls[rank] = (method, value)
            self._settle()
            self._pass_on()
            if not self._changed.wait_for(is_next, self._timeout_s):
                self._problem = f"rank {rank} has waited {self._timeout_s:g} s in {method}"
                self._changed.notify_all()
            if self._round == now:
                raise RankError(f"all ranks call the same methods of Ranks in the same order: {self._problem}")
            own.restore()
            return self._taken

    def _pass_on(self) -> None:
        """Let the first rank run that neither waits nor has ended."""
        self._turn = next((r for r in range(self.size) if r not in self._calls and r not in self._ended), self._turn)
        self._changed.notify_all()

    def _settle(self) -> None:
        """Hand out what all have put down, or say why that will not come."""
        if not self._calls or len(self._calls) + len(self._ended) < self.size:
            return
        called = [self._calls[rank][0] if rank in self._calls else "" for rank in range(self.size)]
        if len({*called}) > 1:
            each = (f"rank {rank} {f'calls {name}' if name else 'has ended'}" for rank, name in enumerate(called))
            self._problem = ", ".join(each)
        else:
            self._taken, self._calls = [self._calls[rank][1] for rank in range(self.size)], {}
            self._round += 1
