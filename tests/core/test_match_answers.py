"""A match has to return a bool; the engine looks at its first answer at each event."""

import sys

import pytest

from engine_core import AlgorithmMetadata, Engine, Logger, State
from engine_core.errors import ArgumentTypeError, MatchError

from .parts import Always


class Answering(Always):
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


def engine_of(*algorithms):
    return Engine(State(algorithms=list(algorithms)), Logger())


def test_an_answer_that_is_no_bool_is_an_error():
    has_to = "at BATCH_END; it has to return True or False"
    for answer, more in ((None, "; is a `return` missing?"), (1, ""), ("yes", ""), (Item(1.0), "")):
        algorithm = Answering(answer)
        with engine_of(algorithm) as engine:
            for _ in range(2):  # the engine does not get used to it
                with pytest.raises(MatchError) as error:
                    engine.run_event("batch_end")
                assert str(error.value) == f"match of algorithm Answering returned {answer!r} {has_to}{more}"
        assert isinstance(error.value, ArgumentTypeError)
        assert algorithm.applied == 0


def test_a_bool_is_taken():
    for answer in (True, False, Item(True), Item(False)):
        algorithm = Answering(answer)
        engine_of(algorithm).run_event("batch_end")
        assert algorithm.applied == bool(answer)


def test_the_answers_of_numpy_and_torch_are_taken():
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    for yes in (numpy.bool_(True), torch.tensor(True), torch.tensor([True])):
        algorithm = Answering(yes)
        engine_of(algorithm).run_event("batch_end")
        assert algorithm.applied == 1
    for no_bool in (numpy.array([True, False]), numpy.int64(1), torch.tensor([True, True]), torch.tensor(1)):
        with engine_of(Answering(no_bool)) as engine, pytest.raises(MatchError):
            engine.run_event("batch_end")


def test_later_answers_count_by_their_truth_until_another_engine_asks():
    algorithm = Answering(True, 1, None, 1)
    engine = engine_of(algorithm)
    for _ in range(4):
        engine.run_event("batch_end")
    assert algorithm.applied == 3
    with pytest.raises(MatchError, match="returned 1 at BATCH_END"):
        engine_of(algorithm).run_event("batch_end")


def test_each_event_has_its_own_first_answer_and_looking_at_the_members_is_none():
    with engine_of(Answering(False, None)) as engine:
        assert engine.members
        engine.run_event("batch_end")
        with pytest.raises(MatchError, match="returned None at AFTER_FORWARD"):
            engine.run_event("after_forward")


def test_an_algorithm_that_stays_is_not_judged_again_when_another_one_joins():
    staying = Answering(True, 1)
    with engine_of(staying) as engine:
        engine.run_event("batch_end")
        engine.state.algorithms.append(Answering(None))
        with pytest.raises(MatchError, match="algorithm Answering-2 returned None"):
            engine.run_event("batch_end")
        engine.state.algorithms.pop()
        engine.run_event("batch_end")
    assert staying.applied == 2


def test_when_something_is_undone_a_first_answer_is_judged_and_a_later_one_counts_by_its_truth():
    later, first = Answering(True, True, True, 1), Answering(True, None)
    with pytest.raises(MemoryError), engine_of(later) as engine:
        for event in ("before_forward", "after_forward", "before_forward"):
            engine.run_event(event)
        raise MemoryError
    assert later.applied == 4
    with pytest.raises(MemoryError) as error, engine_of(first) as engine:
        engine.run_event("before_forward")
        raise MemoryError
    (note,) = error.value.__notes__
    said = "could not undo what it did at BEFORE_FORWARD: MatchError: match of algorithm Answering returned None"
    assert said in note


def test_nothing_is_judged_from_the_third_time_on():
    called = []

    def note(frame, what, _):
        if what == "call":
            called.append(frame.f_code.co_name)

    with engine_of(Answering(False)) as engine:
        for _ in range(2):
            engine.run_event("batch_end")
        sys.setprofile(note)
        engine.run_event("batch_end")
        sys.setprofile(None)
    assert called == ["run_event", "run_alone", "run", "match"]
