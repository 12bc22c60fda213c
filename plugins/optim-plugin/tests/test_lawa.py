"""LAWA in a run: which weights it takes, what evaluation sees, what it keeps, and what it refuses."""

import optim_parts
import pytest
import torch
from optim_parts import Recorder, pause_after, same
from parts import batches

from engine_core import State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from optim_plugin import LAWA


def make_trainer(lawa, *callbacks, **settings):
    """Return one of 20 batches in 4 epochs."""
    return optim_parts.make_trainer(
        lawa, *callbacks, data=batches(8, 8, 8, 8, 8), **{"max_duration": "4ep", **settings}
    )


def mean_of(recorder, taken):
    """Return the mean of floating weights, added up from the oldest on, and the last of the others."""
    found = {}
    for name, last in recorder.steps[taken[-1]].items():
        parts = [recorder.steps[step][name] for step in taken]
        found[name] = sum(parts, torch.zeros_like(last)) / len(parts) if last.is_floating_point() else last
    return found


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"interval": "1ep", "window": 3}, [9, 14, 19]),
        ({"interval": "1ep", "window": 6}, [4, 9, 14, 19]),
        ({"interval": "3ba", "window": 2}, [14, 17]),
        ({"interval": "0.1dur", "window": 4}, [13, 15, 17, 19]),
        ({}, [15, 16, 17, 18, 19]),  # a hundredth of it is less than a batch
    ],
    ids=str,
)
def test_it_is_the_mean_of_the_weights_at_the_ends_of_the_last_intervals(arguments, taken):
    """Batches are counted from 0; BatchNorm's statistics are averaged too."""
    lawa, recorder = LAWA(**arguments), Recorder()
    with make_trainer(lawa, recorder) as trainer:
        trainer.fit()
    assert same(lawa.averaged_state_dict(), mean_of(recorder, taken))
    assert len(lawa.state_dict()["kept"]) == len(taken)


def test_evaluation_sees_the_mean_of_what_there_is_and_training_keeps_its_own_weights():
    lawa, recorder = LAWA("2ep", 2), Recorder()
    with make_trainer(lawa, recorder, eval_dataloader=batches(8)) as trainer:
        trainer.fit()
    expected = [recorder.steps[4], *(mean_of(recorder, taken) for taken in ([9], [9], [9, 19]))]
    assert all(same(seen, mean) for seen, mean in zip(recorder.evaluated, expected, strict=True))
    assert same(dict(trainer.state.model.state_dict()), recorder.steps[19])


def test_a_resumed_run_is_that_of_one_go(tmp_path):
    whole, rest = LAWA("3ba", 3), LAWA("3ba", 3)
    with make_trainer(whole) as trainer:
        trainer.fit()
    with make_trainer(LAWA("3ba", 3), CheckpointSaver(tmp_path), pause_after(13)) as trainer:
        trainer.fit()
    with make_trainer(rest, load_path=tmp_path) as trainer:
        kept = rest.state_dict()["kept"]
        trainer.fit()
    assert len(kept) == 3
    assert same(rest.averaged_state_dict(), whole.averaged_state_dict())


def test_what_cannot_be_located_or_taken_back_is_refused():
    with pytest.raises(ValueError, match=r"max_duration is not known, so '0\.002dur' can't be located"):
        LAWA().validate(State())
    with pytest.raises(ValueError, match=r"window=1 .*of how many weights the mean is"):
        LAWA(window=1)
    with pytest.raises(ValueError, match="the state of lawa has no 'kept'"):
        LAWA().load_state_dict({"average": {}, "count": 1})
