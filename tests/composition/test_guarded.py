"""A batch that is skipped, and a run that is rolled back, with each algorithm of the repository."""

import pytest

from engine_core import Callback
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.errors import NonFiniteLossWarning

from .conftest import NAMES, VARIANTS, make, trainer_of, weights


class Explode(Callback):
    """Makes the gradients of some batches infinite."""

    def after_train_batch(self, state, logger):
        if state.timestamp.batch in (3, 6):
            for parameter in state.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.fill_(float("inf"))


def guarded(name, policy, folder):
    saver = CheckpointSaver(folder, "2ba", keep_last=None)
    with trainer_of([make(name)], callbacks=[Explode(), saver, LossGuard(policy)]) as trainer:
        trainer.fit()
    return weights(trainer)


@pytest.mark.parametrize("policy", [pytest.param("skip", marks=pytest.mark.full), "rollback"])
@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_what_is_not_finite_stays_out_of_the_weights(name, policy, tmp_path):
    with pytest.warns(NonFiniteLossWarning, match="its step is skipped"):
        learned = guarded(name, policy, tmp_path)
    assert all(value.isfinite().all() for value in learned.values())
