"""At which steps something is due: the first one, and the first of each interval after it."""

from __future__ import annotations

from collections.abc import Mapping

from engine_core import State, Time, Timestamp
from engine_core.arguments import check_interval, check_whole, interval_in_run
from engine_core.time import FIELD_OF

__all__ = ["Pace"]


class Pace:
    """Counts the intervals of a run, each from its first step on.

    Args:
        interval: a length of training, such as `"100ba"`, or a fraction of it, such as `"0.1dur"`.

    Example:
        >>> pace = Pace("2ba")
        >>> pace.begin(State())
        >>> [pace.is_due(Timestamp(batch=batch)) for batch in range(5)]
        [True, False, True, False, True]
    """

    def __init__(self, interval: Time | str) -> None:
        self.interval = str(check_interval("interval", interval))
        self._field, self._length = 0, 0.0
        self._begun: int | None = None

    def begin(self, state: State) -> None:
        """Locate the interval in a run that has seen nothing yet.

        Raises:
            ArgumentError: (a ValueError) for a fraction of a training whose length is not known.
        """
        self.locate(state)
        self._begun = None

    def locate(self, state: State) -> None:
        """Locate the interval anew: a fit may last longer than the one before."""
        length = interval_in_run(state, "interval", self.interval).length
        self._field, self._length = FIELD_OF[length.unit], length.value

    def is_due(self, now: Timestamp) -> bool:
        """Is this the first step of an interval? To be asked once a step, before the clock goes on."""
        begun = int(now[self._field] // self._length)
        if begun == self._begun:
            return False
        self._begun = begun
        return True

    def state_dict(self) -> dict[str, int]:
        """Return the number of the interval that has begun."""
        return {} if self._begun is None else {"begun": self._begun}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue within the interval of the saved run."""
        saved = state.get("begun")
        self._begun = None if saved is None else check_whole("begun", saved, "[0, inf)", "the interval that has begun")
