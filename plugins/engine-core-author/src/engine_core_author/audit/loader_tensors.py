"""Which tensors of a batch are the loader's and which an algorithm's, and whether an apply changed the loader's."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from .fingerprint import Digests, changed_leaves, fingerprint, tensors_of


class Held(NamedTuple):
    """A batch before an apply: its tensors by path, which of them are the loader's, and whether the batch itself is."""

    batch: Any
    tensors: Mapping[str, torch.Tensor]
    of_loader: frozenset[str]
    is_of_loader: bool

    def changed_in_place(self, batch: Any, before: Digests, after: Digests) -> tuple[str, ...]:
        """Return what changed in the loader's tensors, and in its container if that is still the batch."""
        stays = batch is self.batch
        if stays and before == after:
            return ()
        content = fingerprint(dict(self.tensors))
        leaves = [path for path in self.of_loader if _bits(content[path]) != _bits(before[path])]
        if stays and self.is_of_loader:
            now = tensors_of(batch)
            leaves += [
                path
                for path in changed_leaves(before, after)
                if path not in self.tensors or now.get(path) is not self.tensors[path]
            ]
        return tuple(path for path in {**before, **after} if path in leaves)


class Owners:
    """Where the batch's tensors come from: those that an apply adds are the algorithm's, the others the loader's."""

    def __init__(self) -> None:
        self._by_memory: dict[int, tuple[weakref.ref[torch.Tensor], bool]] = {}
        self._made: Any = None

    def look(self, batch: Any) -> Held:
        """Record tensors of a batch that were not seen before as the loader's."""
        tensors = tensors_of(batch)
        of_loader = frozenset(path for path, tensor in tensors.items() if not self._is_made(tensor, if_new=False))
        return Held(batch, tensors, of_loader, batch is not self._made)

    def learn(self, held: Held, batch: Any, *, restores: bool) -> None:
        """Record what is new in the batch after an apply as the algorithm's."""
        for tensor in tensors_of(batch).values():
            self._is_made(tensor, if_new=True)
        if batch is not held.batch and not restores:
            self._made = batch

    def _is_made(self, tensor: torch.Tensor, *, if_new: bool) -> bool:
        memory = _memory_of(tensor)
        known = self._by_memory.get(memory)
        if known is not None and known[0]() is not None:
            return known[1]
        self._by_memory[memory] = weakref.ref(tensor), if_new
        return if_new


def _memory_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory, which its views share; for one without memory, its own."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def _bits(digest: str) -> str:
    return digest.rpartition(" ")[2]
