"""A learning rate that follows the progress of training, whatever the number of steps."""

from __future__ import annotations

from engine_core import Callback, Logger, State


class LinearRate(Callback):
    """Let the rate rise for the first twentieth of training, and then fall to zero.

    A scheduler counts steps, and an epoch that leaves examples out has fewer of them than it was made for.
    """

    def __init__(self, highest: float) -> None:
        self.highest = highest

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """Set the rate of the next step."""
        elapsed = state.get_elapsed_duration()
        done = 0.0 if elapsed is None else elapsed.value
        for group in state.optimizers[0].param_groups:
            group["lr"] = self.highest * min((done + 0.002) / 0.052, (1.0 - done) / 0.95)
