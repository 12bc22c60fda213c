"""When something raises between the halves of a pair, the algorithms that ran at the first half run at the second."""

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, State


def recorder(name, events, heard, *, raises_at=None, matches=None):
    """Return an algorithm of its own class that records when it is applied."""

    def match(self, event, state):
        return matches is None or event in matches

    def apply(self, event, state, logger):
        heard.append(f"{name} {event}")
        if event == raises_at:
            raise RuntimeError(f"{name} at {event}")

    members = {"metadata": AlgorithmMetadata(events=events), "match": match, "apply": apply}
    return type(name, (Algorithm,), members)()


LOSS = ("before_loss", "after_loss")


def engine_of(*algorithms):
    return Engine(State(algorithms=list(algorithms)), Logger())


def test_both_undo_in_reverse_what_they_began_in_the_block():
    heard = []
    engine = engine_of(recorder("A", LOSS, heard), recorder("B", LOSS, heard))
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard == ["A before_loss", "B before_loss", "B after_loss", "A after_loss"]


def test_nothing_is_undone_twice():
    heard = []
    engine = engine_of(recorder("A", LOSS, heard))
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        engine.run_event("after_loss")
        raise ZeroDivisionError
    engine.undo(ZeroDivisionError())
    assert heard == ["A before_loss", "A after_loss"]


def test_the_innermost_pair_comes_first():
    heard = []
    events = ("fit_start", "fit_end", "before_forward", "after_forward", "eval_start", "eval_end")
    engine = engine_of(recorder("A", events, heard))
    with pytest.raises(ZeroDivisionError), engine.restoring():
        for event in ("eval_start", "fit_start", "before_forward"):
            engine.run_event(event)
        raise ZeroDivisionError
    assert heard[3:] == ["A eval_end", "A after_forward", "A fit_end"]


def test_what_was_begun_before_the_block_stays():
    heard = []
    engine = engine_of(recorder("A", ("fit_start", "fit_end", *LOSS), heard))
    engine.run_event("fit_start")
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard == ["A fit_start", "A before_loss", "A after_loss"]


def test_leaving_the_engine_by_an_exception_undoes_everything():
    heard = []
    with pytest.raises(KeyboardInterrupt), engine_of(recorder("A", LOSS, heard)) as engine:
        engine.run_event("before_loss")
        raise KeyboardInterrupt
    assert heard == ["A before_loss", "A after_loss"]


def test_what_is_begun_when_the_engine_closes_is_undone_too():
    heard = []
    with engine_of(recorder("A", LOSS, heard)) as engine:
        engine.run_event("before_loss")
    engine.close()
    assert heard == ["A before_loss", "A after_loss"]


def test_what_goes_wrong_in_closing_is_logged(caplog):
    heard = []
    with engine_of(recorder("A", LOSS, heard), recorder("B", LOSS, heard, raises_at="after_loss")) as engine:
        engine.run_event("before_loss")
    assert caplog.messages == ["B could not undo what it did at BEFORE_LOSS, when the engine was closed"]
    assert heard[-1] == "A after_loss"


def test_one_that_raised_in_the_first_half_and_one_not_reached_have_nothing_to_undo():
    heard = []
    engine = engine_of(
        recorder("A", LOSS, heard), recorder("B", LOSS, heard, raises_at="before_loss"), recorder("C", LOSS, heard)
    )
    with pytest.raises(RuntimeError, match="B at before_loss"), engine.restoring():
        engine.run_event("before_loss")
    assert heard == ["A before_loss", "B before_loss", "A after_loss"]


def test_where_the_second_half_raises_the_others_still_get_theirs():
    heard = []
    engine = engine_of(
        recorder("A", LOSS, heard), recorder("B", LOSS, heard, raises_at="after_loss"), recorder("C", LOSS, heard)
    )
    with pytest.raises(RuntimeError, match="B at after_loss"), engine.restoring():
        engine.run_event("before_loss")
        engine.run_event("after_loss")
    assert heard[3:] == ["C after_loss", "B after_loss", "A after_loss"]


def test_an_error_in_it_becomes_a_note_and_the_others_still_run():
    heard = []
    engine = engine_of(recorder("A", LOSS, heard), recorder("B", LOSS, heard, raises_at="after_loss"))
    with pytest.raises(ZeroDivisionError) as caught, engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert caught.value.__notes__ == [
        "in this batch ran: A at BEFORE_LOSS (declares no writes), B at BEFORE_LOSS (declares no writes)",
        "after this, B could not undo what it did at BEFORE_LOSS: RuntimeError: B at after_loss",
    ]
    assert heard[-1] == "A after_loss"


def test_match_is_called_as_always():
    heard = []
    engine = engine_of(recorder("A", LOSS, heard, matches=[Event.BEFORE_LOSS]), recorder("B", LOSS, heard))
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard == ["A before_loss", "B before_loss", "B after_loss"]


def test_one_that_does_not_list_the_second_half_is_left_alone():
    heard = []
    engine = engine_of(recorder("A", ("before_loss",), heard), recorder("B", LOSS, heard))
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard == ["A before_loss", "B before_loss", "B after_loss"]


def test_one_that_leaves_the_engine_in_between_undoes_then():
    heard = []
    engine = engine_of(recorder("A", LOSS, heard), recorder("B", LOSS, heard))
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        del engine.state.algorithms[0]
        engine.run_event("batch_end")
        assert heard[2:] == ["A after_loss"]
        raise ZeroDivisionError
    assert heard[2:] == ["A after_loss", "B after_loss"]


def test_one_that_cannot_undo_when_it_leaves_raises_there():
    heard = []
    engine = engine_of(recorder("A", LOSS, heard, raises_at="after_loss"))
    engine.run_event("before_loss")
    engine.state.algorithms.clear()
    with pytest.raises(RuntimeError, match="A at after_loss") as caught:
        engine.run_event("batch_end")
    assert caught.value.__notes__ == ["A could not undo what it did at BEFORE_LOSS, when it left the engine"]


def test_a_half_that_was_skipped_in_one_block_does_not_hide_the_next_one():
    heard = []
    engine = engine_of(recorder("A", LOSS, heard))
    with engine.restoring():
        engine.run_event("before_loss")
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard == ["A before_loss", "A before_loss", "A after_loss"]


def test_a_callback_that_raises_at_the_first_half_comes_after_the_algorithms():
    class Raises:
        def before_loss(self, state, logger):
            raise ZeroDivisionError

    heard = []
    state = State(algorithms=[recorder("A", LOSS, heard)], callbacks=[Raises()])
    with pytest.raises(ZeroDivisionError), Engine(state, Logger()) as engine:
        engine.run_event("before_loss")
    assert heard == ["A before_loss", "A after_loss"]


def test_a_pair_whose_second_half_only_the_marker_ended_is_over():
    heard = []
    events = ("before_dataloader", "after_dataloader")
    with pytest.raises(ZeroDivisionError), engine_of(recorder("A", events, heard)) as engine:
        engine.run_event("before_dataloader")
        engine.run_marker_only_event("after_dataloader")
        raise ZeroDivisionError
    assert heard == ["A before_dataloader"]


def test_an_algorithm_without_declared_events_undoes_too():
    heard = []
    with pytest.raises(ZeroDivisionError), engine_of(recorder("A", None, heard, matches=LOSS)) as engine:
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard == ["A before_loss", "A after_loss"]


def test_a_second_half_where_nothing_matched_is_over():
    heard, matches = [], {"before_loss"}
    with pytest.raises(ZeroDivisionError), engine_of(recorder("A", LOSS, heard, matches=matches)) as engine:
        engine.run_event("before_loss")
        engine.run_event("after_loss")
        matches.add("after_loss")
        raise ZeroDivisionError
    assert heard == ["A before_loss"]
