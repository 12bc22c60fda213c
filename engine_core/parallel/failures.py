"""A rank that fails ends the others: it says why in the group's store, and the others look there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ..errors import RankError

_READ_S = 2.0
"""How long the rank whose process holds the store lives on for the others to read it."""
_LONGEST = 500


class Failures:
    """What this rank tells the others when it fails, and what it learns of their failures."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._key = f"engine-core/failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._store: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001  torch has no public way
        self._has_failed = False

    def guard(self, communicate: Callable[[], Any]) -> None:
        """Call a collective; raise a RankError if it failed because of another rank."""
        try:
            communicate()
        except RuntimeError as error:
            raise self.blamed(error) from error

    def blamed(self, error: BaseException) -> BaseException:
        """Return a RankError if another rank has failed or is gone, else `error`."""
        if (told := self._told()) is not None:
            return RankError(f"rank {self._rank} ends because {told}")
        return RankError(f"rank {self._rank} ends because another rank is gone: {str(error)[:_LONGEST]}")

    def tell(self, error: BaseException) -> None:
        """Tell the others, once, that this rank ends with `error`, and leave the group."""
        if self._has_failed or isinstance(error, RankError):
            return
        self._has_failed = True
        what = f"rank {self._rank} failed: {type(error).__name__}: {error}"
        try:
            self._store.set(self._key, json.dumps(what[:_LONGEST]))
            dist.destroy_process_group()
            ends_s = time.monotonic() + _READ_S
            while self._rank == 0 and time.monotonic() < ends_s:
                if self._store.add(f"{self._key}/read", 0) >= self._size - 1:
                    break
                time.sleep(0.05)
        except Exception:  # noqa: BLE001, S110  nothing may replace the first error
            pass

    def _told(self) -> str | None:
        try:
            if not self._store.check([self._key]):
                return None
            told: str = json.loads(self._store.get(self._key))
            self._store.add(f"{self._key}/read", 1)
        except Exception:  # noqa: BLE001  the store may be gone with its process
            return None
        return told
