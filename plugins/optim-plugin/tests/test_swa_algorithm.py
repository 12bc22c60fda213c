"""SWA in a run: which weights it takes, what evaluation sees, and what it refuses."""

from typing import Any

import optim_parts
import pytest
import torch
from optim_parts import Recorder
from parts import batches, net

from engine_core import State, Trainer
from optim_plugin import SWA


def make_trainer(swa: SWA, recorder: Recorder, **settings: Any) -> Trainer:
    """Return one of 20 batches in 4 epochs."""
    given = {"max_duration": "4ep", **settings}
    return optim_parts.make_trainer(swa, recorder, data=batches(8, 8, 8, 8, 8), **given)


@pytest.mark.parametrize(
    ("arguments", "settings", "taken"),
    [
        ({"start": 0.5}, {}, [9, 14, 19]),
        ({"start": 0.51}, {}, [14, 19]),
        ({"start": 0.5, "update_interval": "2ep"}, {}, [9, 19]),
        ({"start": 0.7, "update_interval": "3ba"}, {}, [14, 17]),
        ({"start": 0.5, "update_interval": "2ba"}, {"max_duration": "13ba"}, [7, 9, 11]),
        ({"start": 0.8, "update_interval": "12ba"}, {"max_duration": "3ep"}, [11]),  # 2/3 + 2/5 / 3 < 0.8
    ],
)
def test_it_is_the_mean_of_the_weights_at_the_ends_of_intervals(
    arguments: dict[str, Any], settings: dict[str, Any], taken: list[int]
) -> None:
    """Batches of 20 in 4 epochs, counted from 0; BatchNorm's statistics are averaged too, integers are the last's."""
    swa, recorder = SWA(**arguments), Recorder()
    with make_trainer(swa, recorder, **settings) as trainer:
        trainer.fit()
    average = swa.averaged_state_dict()
    for name, tensor in average.items():
        weights = [recorder.steps[step][name] for step in taken]
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, torch.stack(weights).mean(0), rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(tensor, weights[-1])
    assert swa.state_dict()["count"] == len(taken)


def test_evaluation_sees_the_weights_before_start_and_the_mean_after() -> None:
    swa, recorder = SWA(start=0.75), Recorder()
    with make_trainer(swa, recorder, eval_dataloader=batches(8)) as trainer:
        trainer.fit()
    seen, steps = recorder.evaluated, recorder.steps
    expected = [steps[4], steps[9], steps[14], swa.averaged_state_dict()]
    assert all(torch.equal(s[name], e[name]) for s, e in zip(seen, expected, strict=True) for name in s)
    assert not torch.equal(seen[3]["0.weight"], steps[19]["0.weight"])
    assert torch.equal(trainer.state.model.state_dict()["0.weight"], steps[19]["0.weight"])


def test_an_interval_that_never_ends_after_start_leaves_evaluation_as_it_is_and_warns() -> None:
    swa, recorder = SWA(update_interval="9ep"), Recorder()
    with make_trainer(swa, recorder, eval_dataloader=batches(8)) as trainer:
        trainer.fit("3ep")
        with pytest.warns(
            UserWarning, match=r"swa averaged nothing: .* first 9ep that ends at 0\.7 .*'4ep' contains none"
        ):
            trainer.fit("1ep")
    assert torch.equal(recorder.evaluated[-1]["0.weight"], recorder.steps[-1]["0.weight"])
    assert swa.averaged_state_dict() is None


def test_an_instance_in_a_second_run_forgets_the_first() -> None:
    swa = SWA(start=0.5)
    with make_trainer(swa, Recorder()) as trainer:
        trainer.fit()
    with make_trainer(swa, Recorder()) as trainer:
        trainer.fit("1ba")
        assert swa.state_dict() == {}


def test_a_length_that_is_not_known_is_refused_with_the_first_batch() -> None:
    state = State(model=net())
    with pytest.raises(ValueError, match="max_duration is not known"):
        SWA().validate(state)


@pytest.mark.parametrize(
    "arguments", [*({"update_interval": at} for at in ("10sp", "0ep")), {"start": -0.1}, {"start": 1}]
)
def test_intervals_are_whole_epochs_or_batches_and_the_start_is_within_the_training(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        SWA(**arguments)
