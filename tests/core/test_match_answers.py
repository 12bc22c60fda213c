"""A match has to return a bool; the engine looks at its first answer at each event."""

import sys

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State
from engine_core.errors import ArgumentTypeError, MatchError


class Answering(Algorithm):
    """Gives the answers one after the other, the last one from then on."""

    metadata = AlgorithmMetadata(events=("before_forward", "after_forward", "batch_end"))

    def __init__(self, *answers):
        self.answers = list(answers)
        self.applied = 0

    def match(self, event, state):
        return self.answers.pop(0) if self.answers[1:] else self.answers[0]

    def apply(self, event, state, logger):
        self.applied += 1


class Item:
    """A bool of one element, as NumPy and torch have it."""

    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value

    def __bool__(self):
        return bool(self.value)

    def __repr__(self):
        return f"Item({self.value})"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (None, "None at BATCH_END; it has to return True or False; is a `return` missing?"),
        (0, "0 at BATCH_END; it has to return True or False"),
        (1, "1 at BATCH_END; it has to return True or False"),
        ("yes", "'yes' at BATCH_END; it has to return True or False"),
        (Item(1.0), "Item(1.0) at BATCH_END; it has to return True or False"),
    ],
    ids=repr,
)
def test_an_answer_that_is_no_bool_is_an_error(answer, shown):
    algorithm = Answering(answer)
    with Engine(State(algorithms=[algorithm]), Logger()) as engine:
        for _ in range(2):  # the engine does not get used to it
            with pytest.raises(MatchError) as error:
                engine.run_event("batch_end")
            assert str(error.value) == f"match of algorithm Answering returned {shown}"
    assert isinstance(error.value, ArgumentTypeError)
    assert algorithm.applied == 0


@pytest.mark.parametrize("answer", [True, False, Item(True), Item(False)], ids=repr)
def test_a_bool_is_taken(answer):
    algorithm = Answering(answer)
    with Engine(State(algorithms=[algorithm]), Logger()) as engine:
        engine.run_event("batch_end")
    assert algorithm.applied == bool(answer)


def test_the_answers_of_numpy_and_torch_are_taken():
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    for yes in (numpy.bool_(True), torch.tensor(True), torch.tensor([True])):
        algorithm = Answering(yes)
        with Engine(State(algorithms=[algorithm]), Logger()) as engine:
            engine.run_event("batch_end")
        assert algorithm.applied == 1
    for no_bool in (numpy.array([True, False]), numpy.int64(1), torch.tensor([True, True]), torch.tensor(1)):
        with Engine(State(algorithms=[Answering(no_bool)]), Logger()) as engine, pytest.raises(MatchError):
            engine.run_event("batch_end")


def test_later_answers_count_by_their_truth():
    algorithm = Answering(True, 1, None, 1)
    with Engine(State(algorithms=[algorithm]), Logger()) as engine:
        for _ in range(4):
            engine.run_event("batch_end")
    assert algorithm.applied == 3


def test_each_event_has_its_own_first_answer():
    with Engine(State(algorithms=[Answering(False, None)]), Logger()) as engine:
        engine.run_event("batch_end")
        with pytest.raises(MatchError, match="returned None at AFTER_FORWARD"):
            engine.run_event("after_forward")


def test_an_algorithm_that_stays_is_not_judged_again_when_another_one_joins():
    staying = Answering(True, 1)
    with Engine(State(algorithms=[staying]), Logger()) as engine:
        engine.run_event("batch_end")
        engine.state.algorithms.append(Answering(None))
        with pytest.raises(MatchError, match="algorithm Answering-2 returned None"):
            engine.run_event("batch_end")
        engine.state.algorithms.pop()
        engine.run_event("batch_end")
    assert staying.applied == 2


def test_another_engine_judges_again():
    algorithm = Answering(True, 1)
    for expected in (True, False):
        with Engine(State(algorithms=[algorithm]), Logger()) as engine:
            if expected:
                engine.run_event("batch_end")
            else:
                with pytest.raises(MatchError, match="returned 1 at BATCH_END"):
                    engine.run_event("batch_end")


def test_looking_at_the_lineup_is_no_first_answer():
    with Engine(State(algorithms=[Answering(None)]), Logger()) as engine:
        assert engine.members
        with pytest.raises(MatchError):
            engine.run_event("batch_end")


def test_a_later_answer_counts_by_its_truth_when_something_is_undone_too():
    algorithm = Answering(True, True, True, 1)
    with pytest.raises(MemoryError), Engine(State(algorithms=[algorithm]), Logger()) as engine:
        for event in ("before_forward", "after_forward", "before_forward"):
            engine.run_event(event)
        raise MemoryError
    assert algorithm.applied == 4


def test_an_answer_that_is_no_bool_is_told_at_the_second_half_of_a_pair_too():
    algorithm = Answering(True, None)
    with pytest.raises(MemoryError) as error, Engine(State(algorithms=[algorithm]), Logger()) as engine:
        engine.run_event("before_forward")
        raise MemoryError
    (note,) = error.value.__notes__
    assert (
        "could not undo what it did at BEFORE_FORWARD: MatchError: match of algorithm Answering returned None" in note
    )


def test_nothing_is_judged_from_the_third_time_on():
    called = []

    def note(frame, what, _):
        if what == "call":
            called.append(frame.f_code.co_name)

    with Engine(State(algorithms=[Answering(False)]), Logger()) as engine:
        for _ in range(2):
            engine.run_event("batch_end")
        sys.setprofile(note)
        engine.run_event("batch_end")
        sys.setprofile(None)
    assert called == ["run_event", "run_alone", "run", "match"]
