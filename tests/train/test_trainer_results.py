"""`trainer.results`: the last and the best value of each result of the run's own evaluations, across resumes."""

import pytest

from engine_core.callbacks.checkpoint_saver import CheckpointSaver

from .parts import at, batches, rows, trainer

DEV = [rows(8, 7)]
VALUES = [3.0, 1.0, 2.0, 0.5, 4.0]


class Scripted:
    """A metric whose values are given; it computes one for each evaluation, and the check of the first batch none."""

    def __init__(self):
        self.made = 0

    def update(self, outputs, targets): ...

    def reset(self):
        self.made += 1

    def compute(self):
        return VALUES[self.made - 1]


def made(begun=0, **settings):
    scripted = Scripted()
    scripted.made = begun
    given = {"eval_dataloader": {"dev": DEV}, "metrics": {"error": scripted}, "max_duration": "4ep"}
    return trainer(batches(8, 8), **{**given, **settings})


def best(trainer):
    return trainer.results["dev/error"]


def result(last, value, epoch):
    return {"last": last, "best": {"value": value, "step": 2 * epoch, "epoch": epoch}}


def test_each_evaluation_of_the_run_counts_and_none_on_another_loader_under_the_same_label():
    with made() as run:
        assert run.results == {}
        run.fit("2ep")
        assert best(run) == result(1.0, 1.0, 2)
        run.eval({"dev": [rows(8, 9)]})
        assert best(run) == result(1.0, 1.0, 2)
        run.fit("1ep")
        assert best(run) == result(0.5, 0.5, 3)
        run.eval()
        assert best(run)["last"] == 4.0


def test_an_evaluation_that_fails_counts_for_nothing():
    def fail(state):
        if state.timestamp.epoch == 2 and state.dataloader_label == "test":
            raise ZeroDivisionError

    with made(eval_dataloader={"dev": DEV, "test": DEV}, metrics={}, callbacks=at("eval_end", fail)) as run:
        run.fit("1ep")
        before = run.results
        with pytest.raises(ZeroDivisionError):
            run.fit("1ep")
        assert run.results == before != {}


def test_a_resumed_run_goes_on_with_the_best_of_before(tmp_path):
    with made(callbacks=CheckpointSaver(tmp_path)) as run:
        run.fit("2ep")
    with made(begun=2, callbacks=CheckpointSaver(tmp_path), autoresume=True) as run:
        assert best(run) == result(1.0, 1.0, 2)
        run.fit("1ep")
        assert best(run) == result(2.0, 1.0, 2)
        run.fit()
        assert best(run) == result(0.5, 0.5, 4)
