"""Where resuming meets signals, custom evaluations, requests to stop, and what only a checkpoint can say."""

import os
import signal

import pytest
import torch

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import resolve
from engine_core.errors import DurationWarning
from engine_core.randomness import GlobalGenerators

from .parts import at, batches, linear, rows, same, trainer
from .test_resume import all_of, run, saved_runs

CPU = torch.device("cpu")


def ended(made):
    """Return the exit code with which a fit ends."""
    with pytest.raises((SystemExit, KeyboardInterrupt)) as end, made:
        made.fit()
    return int(end.value.code) if isinstance(end.value, SystemExit) else 130


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.manual_seed(0)
    return saved_runs(tmp_path_factory.mktemp("whole"))[0]


@pytest.mark.parametrize(
    ("event", "number"),
    [
        *((event, signal.SIGTERM) for event in ("before_dataloader", "batch_end", "epoch_end")),
        *((event, signal.SIGINT) for event in ("after_forward", "eval_batch_end")),
    ],
)
def test_a_signal_at_any_event_ends_with_a_checkpoint_from_which_the_run_is_resumed(event, number, whole, tmp_path):
    once = iter([True])
    handlers = [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)]
    act = lambda state: state.timestamp.batch == 4 and next(once, False) and os.kill(os.getpid(), number)  # noqa: E731
    made, _ = run([at(event, act), CheckpointSaver(tmp_path / "run", "1h")])
    assert ended(made) == 128 + number
    assert [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)] == handlers
    saver = CheckpointSaver(tmp_path / "run", "1h")
    resumed, _ = run([at(event, lambda state: None), saver], autoresume=True, seed=None)
    with resumed:
        resumed.fit()
    assert same(all_of(resumed), whole)


def test_a_custom_evaluation_is_not_ended_by_a_signal(tmp_path):
    found = []
    made = trainer(batches(8, 8, 8), callbacks=[CheckpointSaver(tmp_path)])

    def evaluate(state):
        if state.timestamp.batch == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            found.append(made.eval([rows(4), rows(3)]))

    made.state.callbacks.append(at("batch_end", evaluate))
    assert ended(made) == 143
    assert len(found) == 1
    assert resolve(tmp_path).name == "ep0-ba1"


def test_a_run_that_was_asked_to_stop_has_ended(tmp_path):
    def made(**settings):
        stop = at("batch_end", lambda state: state.stop_training() if state.timestamp.batch == 2 else None)
        return trainer(batches(8, 8, 8), callbacks=[stop, CheckpointSaver(tmp_path, "1ba")], **settings)

    with made() as first:
        first.fit()
    with made(autoresume=True) as again:
        with pytest.warns(DurationWarning, match="nothing to do: the run was stopped; fit"):
            again.fit()
        assert again.state.timestamp.batch == 2
        again.fit("1ba")
        assert again.state.timestamp.batch == 3


def test_optimizer_state_keeps_the_dtype_that_torch_would_cast(tmp_path):
    def fitted(**settings):
        data = [(x.double(), y) for x, y in batches(8, 8, 8, 8)]
        optimizers = lambda p: torch.optim.NAdam(p, lr=0.01)  # noqa: E731
        with trainer(data, linear().double(), optimizers=optimizers, **settings) as made:
            made.fit()
        return dict(made.state.model.state_dict())

    whole = fitted(callbacks=CheckpointSaver(tmp_path, "2ba"))
    assert same(fitted(load_path=tmp_path / "ep0-ba2"), whole)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("torch"),
        lambda state: state.update(torch=torch.zeros(3)),
        lambda state: state.update(torch=None),
        lambda state: state.update(python=[3, torch.zeros(625, dtype=torch.int64) - 1, None]),
        lambda state: state.update(python=[9, torch.zeros(4), None]),
        lambda state: state.update(python=7),
        lambda state: state["numpy"].__setitem__(2, 2**30),
        lambda state: state["numpy"].__setitem__(2, -5),
        lambda state: state["numpy"].__setitem__(1, torch.zeros(3)),
        lambda state: state.update(numpy=[]),
    ],
)
def test_impossible_states_of_generators_are_refused_and_none_is_moved(change):
    state = GlobalGenerators.capture(CPU).to_state()
    before = GlobalGenerators.capture(CPU).to_state()
    change(state)
    with pytest.raises(ValueError, match="the states of the random generators are invalid"):
        GlobalGenerators.of_state(state, CPU)
    assert same(GlobalGenerators.capture(CPU).to_state()["torch"], before["torch"])
