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


CALLABLE = Callable()


def resolve(given):
    return Engine(State(), Logger(), given).algorithm_passes


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        (None, INSTALLED),
        ((), INSTALLED),
        (p, [*INSTALLED, p]),
        (CALLABLE, [*INSTALLED, CALLABLE]),
        ((p, q), [*INSTALLED, p, q]),
        ([p, p], [*INSTALLED, p, p]),
        ((p, -1), [*INSTALLED, p]),
        ((p, 0), [p, *INSTALLED]),
        ((p, -2), [FILO, p, DECLARED, WARN]),
        ((p, 99), [*INSTALLED, p]),
        ([(p, 0), (q, 0)], [q, p, *INSTALLED]),
        (((p, 0), (q, 2)), [p, FILO, q, DECLARED, WARN]),
        ([(p, 0), q], [p, *INSTALLED, q]),
    ],
)
def test_a_pass_a_pair_or_a_sequence_of_these_is_inserted_literally_among_the_cores_own(given, resolved):
    assert resolve(given) == resolved


@pytest.mark.parametrize(
    "given",
    [(p, True), [p, 0], (p, 1.0), (p, None), (p, 0, 1), (0, p), "p", 3, [[p, 0]], State, (State, 0)],
)
def test_anything_else_is_a_value_error(given):
    with pytest.raises(ValueError, match=r"a pass is a function|the index of a pass is an int"):
        resolve(given)


def test_register_pass_appends_or_inserts_and_the_returned_list_is_a_copy():
    engine = Engine(State(), Logger(), p)
    engine.register_pass(q)
    engine.register_pass(q, 0)
    for index in (True, 0.5, None, "0"):
        with pytest.raises(ValueError, match="the index of a pass is an int"):
            engine.register_pass(p, index)
    engine.algorithm_passes.append(p)
    assert engine.algorithm_passes == [q, *INSTALLED, p, q]
