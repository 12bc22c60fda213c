"""A state that loads and can't be stepped with is the checkpoint's fault, and not a crash."""

import pytest
import torch
from torch.optim import lr_scheduler

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointError
from engine_core.trainer.saved import check_alike

from .parts import at, batches, net, trainer


def run(**settings):
    made = {
        "optimizers": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        "schedulers": (lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 6), "1ba"),
    }
    return trainer(batches(8, 8, 8), net(), max_duration="2ep", **made, **settings)


def loaded(folder):
    with run(callbacks=CheckpointSaver(folder, "1ba")) as made:
        made.fit("1ba")
    return run(load_path=folder, load_changed="adopt")


def spoil_optimizer(made):
    del next(iter(made.state.optimizers[0].state.values()))["exp_avg"]


def spoil_scheduler(made):
    made.state.schedulers[0].T_max = "long"


@pytest.mark.parametrize("spoil", [spoil_optimizer, spoil_scheduler])
def test_the_first_step_with_what_was_loaded_names_the_checkpoint_and_a_later_failure_does_not(spoil, tmp_path):
    made = loaded(tmp_path)
    spoil(made)
    with made, pytest.raises(CheckpointError, match=r"can't use the state loaded from '.*ep0-ba1'") as error:
        made.fit()
    assert "load_weights_only" in str(error.value)
    assert isinstance(error.value.__cause__, (KeyError, TypeError))
    made = run(load_path=tmp_path, load_changed="adopt")
    made.state.callbacks.append(at("batch_start", lambda state: state.timestamp.batch == 2 and spoil(made)))
    with made, pytest.raises((KeyError, TypeError)):
        made.fit()


GROUPS = [("lr", "0.1"), ("betas", [0.9, "x"]), ("weight_decay", 10**400), ("amsgrad", 3.0)]


@pytest.mark.parametrize(("key", "value"), GROUPS, ids=str)
def test_a_hyperparameter_of_another_kind_is_refused_when_it_is_loaded(key, value, tmp_path):
    made = loaded(tmp_path)
    state = made.state.optimizers[0].state_dict()
    state["param_groups"][0][key] = value
    with pytest.raises(CheckpointError, match=f"param_groups.0..{key}.* in the checkpoint but .* in this run"):
        check_alike(made.state.optimizers[0].param_groups[0], state["param_groups"][0], "param_groups[0]")
    made.close()
