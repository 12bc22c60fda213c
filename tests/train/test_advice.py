"""The callback that warns of what a run does not mean looks at first batches; then it hears no event of a batch."""

import inspect
import warnings

import pytest
import torch
from torch import nn

from engine_core.errors import AuditWarning, UntrainedParametersWarning
from engine_core.loop import make_loop
from engine_core.needs import EVERYTHING

from .parts import acting, at, batches, trainer

OF_A_BATCH = {"after_dataloader", "before_forward", "after_train_batch", "batch_end"}


def names(state):
    return [type(each).__name__ for each in state.callbacks]


@pytest.mark.parametrize(("fits", "then"), [(("5ba",), "FitAdvice"), (("1ba", "1ba", "2ba", "1ba"), "Advice")])
def test_after_two_batches_of_a_fit_only_its_begin_and_its_end_are_heard(fits, then):
    with trainer(batches(*[8] * 6), max_duration="9ep") as made:
        for duration in fits:
            made.fit(duration)
        assert names(made.state) == [then]
        made.fit("4ba")
        assert names(made.state) == ["FitAdvice"]
        assert made.engine.unheard >= OF_A_BATCH
        assert made.engine.unheard.isdisjoint({"fit_start", "fit_end"})


def test_after_two_batches_an_algorithm_is_applied_by_the_engine_alone():
    depths = []
    look = acting(lambda event, state: depths.append(len(inspect.stack())), "before_loss")
    with trainer(batches(*[8] * 4), algorithms=[look]) as made:
        made.fit()
    first, second, third, fourth = depths
    assert first == second > third == fourth


def test_a_fit_that_fails_in_its_first_batch_leaves_the_look_to_the_next():
    def double(event, state):
        state.batch[0].mul_(2)
        if not failed:
            failed.append(1)
            raise ZeroDivisionError

    failed = []
    with trainer(batches(8, 8), algorithms=[acting(double, "after_dataloader")]) as made:
        with pytest.raises(ZeroDivisionError):
            made.fit()
        with pytest.warns(AuditWarning, match="at AFTER_DATALOADER of batch 0"):
            made.fit()


def test_a_later_fit_still_tells_of_what_no_optimizer_trains():
    made = trainer(batches(*[8] * 4), max_duration="9ep")
    made.fit("3ba")
    assert names(made.state) == ["FitAdvice"]
    made.state.model.late = nn.Linear(4, 3)
    with made, pytest.warns(UntrainedParametersWarning, match="late.weight and late.bias"):
        made.fit("1ba")


def test_who_takes_all_callbacks_away_hears_nothing_and_breaks_nothing():
    clear = at("after_dataloader", lambda state: state.timestamp.batch == 2 and state.callbacks.clear())
    with trainer(batches(*[8] * 4), callbacks=[clear]) as made:
        made.fit()
        assert names(made.state) == []


def test_the_loop_of_an_adapter_looks_for_changes_in_place_and_leaves_too():
    change = acting(lambda event, state: state.batch[0].mul_(2), "after_dataloader")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop = make_loop(EVERYTHING, algorithms=[change], model=nn.Linear(3, 1))
        loop.init()
        with loop.fitting():
            for _ in range(4):
                loop.take((torch.ones(2, 3), torch.ones(2)))
                loop.begin_step()
                loop.end_step()
        loop.close()
    assert [each.category for each in caught] == [AuditWarning]
    assert names(loop.state) == []
