"""A batch that is skipped, and a run that is rolled back, with each algorithm of the repository."""

import pytest

from engine_core import Callback
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.errors import NonFiniteLossWarning

from .conftest import NAMES, VARIANTS, make, trainer_of, weights


def explode(state):
    if state.timestamp.batch in (3, 6):
        for parameter in state.model.parameters():
            if parameter.grad is not None:
                parameter.grad.fill_(float("inf"))


@pytest.mark.parametrize("policy", [pytest.param("skip", marks=pytest.mark.full), "rollback"])
@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_what_is_not_finite_stays_out_of_the_weights(name, policy, tmp_path):
    explodes = type("Explode", (Callback,), {"after_train_batch": lambda self, state, logger: explode(state)})
    callbacks = [explodes(), CheckpointSaver(tmp_path, "2ba", keep_last=None), LossGuard(policy)]
    with (
        pytest.warns(NonFiniteLossWarning, match="its step is skipped"),
        trainer_of([make(name)], callbacks=callbacks) as trainer,
    ):
        trainer.fit()
    assert all(value.isfinite().all() for value in weights(trainer).values())
