import pytest

from engine_core import Engine, Logger, State
from engine_core.passes import apply_declared_order, set_filo_order, warn_if_multiple_loss_interpolation

INSTALLED = [set_filo_order, apply_declared_order, warn_if_multiple_loss_interpolation]
FILO, DECLARED, WARN = INSTALLED


def p(algorithms, event):
    return algorithms


def q(algorithms, event):
    return algorithms


class Callable:
    """A pass may be a callable object, even an unhashable one."""

    __hash__ = None

    def __call__(self, algorithms, event):
        return algorithms


def resolve(given):
    return Engine(State(), Logger(), given).algorithm_passes


def test_the_cores_own_passes_are_always_there_in_this_order():
    assert resolve(None) == INSTALLED


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        (p, [FILO, DECLARED, WARN, p]),
        ([p], [FILO, DECLARED, WARN, p]),
        ((p, q), [FILO, DECLARED, WARN, p, q]),
        ((p, p), [FILO, DECLARED, WARN, p, p]),
        ([p, p], [FILO, DECLARED, WARN, p, p]),
        ((p, -1), [FILO, DECLARED, WARN, p]),
        ((p, 0), [p, FILO, DECLARED, WARN]),
        ((p, 1), [FILO, p, DECLARED, WARN]),
        ((p, -2), [FILO, p, DECLARED, WARN]),
        ((p, 99), [FILO, DECLARED, WARN, p]),
        ([(p, 0), (q, 0)], [q, p, FILO, DECLARED, WARN]),
        (((p, 0), (q, 2)), [p, FILO, q, DECLARED, WARN]),
        ([(p, 0), q], [p, FILO, DECLARED, WARN, q]),
        ([], INSTALLED),
        ((), INSTALLED),
    ],
)
def test_a_pass_a_pair_or_a_sequence_of_these_is_inserted_literally(given, resolved):
    assert resolve(given) == resolved


@pytest.mark.parametrize(
    "given",
    [
        (p, True),
        (p, False),
        [p, 0],
        (p, 1.0),
        (p, "0"),
        (p, None),
        (p, 0, 1),
        (0, p),
        "p",
        3,
        [[p, 0]],
        State,
        (State, 0),
    ],
)
def test_anything_else_is_a_value_error(given):
    with pytest.raises(ValueError, match=r"a pass is a function|the index of a pass is an int"):
        Engine(State(), Logger(), given)


def test_register_pass_appends_or_inserts():
    engine = Engine(State(), Logger(), p)
    engine.register_pass(q)
    engine.register_pass(q, 0)
    assert engine.algorithm_passes == [q, FILO, DECLARED, WARN, p, q]


@pytest.mark.parametrize("index", [True, 0.5, None, "0"])
def test_register_pass_refuses_an_invalid_index_and_changes_nothing(index):
    engine = Engine(State(), Logger())
    with pytest.raises(ValueError, match="the index of a pass is an int"):
        engine.register_pass(p, index)
    assert engine.algorithm_passes == INSTALLED


def test_a_callable_object_may_be_a_pass():
    given = Callable()
    assert resolve(given)[-1] is given


def test_the_returned_list_is_a_copy():
    engine = Engine(State(), Logger())
    engine.algorithm_passes.append(p)
    assert engine.algorithm_passes == INSTALLED
