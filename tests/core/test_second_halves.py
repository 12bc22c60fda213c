"""When something raises between the halves of a pair, the algorithms that ran at the first half run at the second."""

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State

LOSS = ("before_loss", "after_loss")


def recorder(name, heard, events=LOSS, *, raises_at=None, matches=None):
    """Return an algorithm of its own class that records when it is applied."""

    def match(self, event, state):
        return matches is None or event in matches

    def apply(self, event, state, logger):
        heard.append(f"{name} {event}")
        if event == raises_at:
            raise RuntimeError(f"{name} at {event}")

    members = {"metadata": AlgorithmMetadata(events=events), "match": match, "apply": apply}
    return type(name, (Algorithm,), members)()


def engine_of(*algorithms):
    return Engine(State(algorithms=list(algorithms)), Logger())


def test_what_was_begun_before_the_block_stays():
    heard = []
    engine = engine_of(recorder("A", heard, ("fit_start", "fit_end", *LOSS)))
    engine.run_event("fit_start")
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard == ["A fit_start", "A before_loss", "A after_loss"]


def test_what_is_begun_when_the_engine_closes_is_undone_too_and_what_goes_wrong_is_logged(caplog):
    heard = []
    with engine_of(recorder("A", heard), recorder("B", heard, raises_at="after_loss")) as engine:
        engine.run_event("before_loss")
    engine.close()
    assert caplog.messages == ["B could not undo what it did at BEFORE_LOSS, when the engine was closed"]
    assert heard[2:] == ["B after_loss", "A after_loss"]


def test_one_that_leaves_the_engine_in_between_undoes_then_and_raises_there_if_it_cannot():
    heard = []
    engine = engine_of(recorder("A", heard), recorder("B", heard, raises_at="after_loss"))
    engine.run_event("before_loss")
    del engine.state.algorithms[0]
    engine.run_event("batch_end")
    assert heard[2:] == ["A after_loss"]
    engine.state.algorithms.clear()
    with pytest.raises(RuntimeError, match="B at after_loss") as caught:
        engine.run_event("batch_end")
    assert caught.value.__notes__ == ["B could not undo what it did at BEFORE_LOSS, when it left the engine"]


def test_a_half_that_was_skipped_in_one_block_does_not_hide_the_next_one():
    heard = []
    engine = engine_of(recorder("A", heard))
    with engine.restoring():
        engine.run_event("before_loss")
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard == ["A before_loss", "A before_loss", "A after_loss"]


def test_leaving_the_engine_by_an_exception_undoes_everything_also_where_a_callback_raised_at_the_first_half():
    class Interrupts:
        def before_loss(self, state, logger):
            raise KeyboardInterrupt

    heard = []
    state = State(algorithms=[recorder("A", heard)], callbacks=[Interrupts()])
    with pytest.raises(KeyboardInterrupt), Engine(state, Logger()) as engine:
        engine.run_event("before_loss")
    assert heard == ["A before_loss", "A after_loss"]


def test_a_pair_is_over_whose_second_half_only_the_marker_ended_or_where_nothing_matched():
    heard, matches = [], {"before_loss", "before_dataloader"}
    algorithm = recorder("A", heard, ("before_dataloader", "after_dataloader", *LOSS), matches=matches)
    with pytest.raises(ZeroDivisionError), engine_of(algorithm) as engine:
        engine.run_event("before_dataloader")
        engine.run_marker_only_event("after_dataloader")
        engine.run_event("before_loss")
        engine.run_event("after_loss")
        matches |= {"after_loss", "after_dataloader"}
        raise ZeroDivisionError
    assert heard == ["A before_dataloader", "A before_loss"]


def interrupted(*algorithms, events=("before_loss",)):
    """Run events, then let something raise in the block, and return that."""
    engine = engine_of(*algorithms)
    with pytest.raises(ZeroDivisionError) as caught, engine.restoring():
        for event in events:
            engine.run_event(event)
        raise ZeroDivisionError
    engine.undo(ZeroDivisionError())  # nothing twice
    return caught.value


@pytest.mark.parametrize(
    ("other", "heard_of_it"),
    [
        ({"matches": ["before_loss"]}, ["before_loss"]),  # match is called as always
        ({"events": ["before_loss"]}, ["before_loss"]),  # it does not list the second half
        ({"matches": LOSS, "events": None}, LOSS),
    ],
)
def test_both_undo_in_reverse_what_they_began_in_the_block_if_they_match_and_list_it(other, heard_of_it):
    heard = []
    interrupted(recorder("A", heard), recorder("B", heard, **other))
    expected = ["A before_loss", "B before_loss", "B after_loss", "A after_loss"]
    assert heard == [call for call in expected if call[0] == "A" or call[2:] in heard_of_it]


def test_what_was_undone_by_the_event_itself_is_not_undone_twice_and_the_innermost_pair_comes_first():
    heard = []
    interrupted(recorder("A", heard), events=LOSS)
    assert heard == ["A before_loss", "A after_loss"]
    heard.clear()
    pairs = ("fit_start", "fit_end", "before_forward", "after_forward", "eval_start", "eval_end")
    interrupted(recorder("A", heard, pairs), events=("eval_start", "fit_start", "before_forward"))
    assert heard[3:] == ["A eval_end", "A after_forward", "A fit_end"]


def test_an_error_in_it_becomes_a_note_and_the_others_still_run():
    heard = []
    error = interrupted(recorder("A", heard), recorder("B", heard, raises_at="after_loss"))
    assert error.__notes__ == [
        "in this batch ran: A at BEFORE_LOSS (declares no writes), B at BEFORE_LOSS (declares no writes)",
        "after this, B could not undo what it did at BEFORE_LOSS: RuntimeError: B at after_loss",
    ]
    assert heard[-1] == "A after_loss"


@pytest.mark.parametrize(
    ("raises_at", "expected"),
    [
        ("before_loss", ["A before_loss", "B before_loss", "A after_loss"]),
        ("after_loss", [*(f"{name} before_loss" for name in "ABC"), *(f"{name} after_loss" for name in "CBA")]),
    ],
)
def test_where_a_half_raises_itself_those_that_ran_get_their_second_half_once(raises_at, expected):
    heard = []
    engine = engine_of(recorder("A", heard), recorder("B", heard, raises_at=raises_at), recorder("C", heard))
    with pytest.raises(RuntimeError, match=f"B at {raises_at}"), engine.restoring():
        engine.run_event("before_loss")
        engine.run_event("after_loss")
    assert heard == expected
