"""Why one of two comes first: every reason, for what is there, and a plain answer for what is not."""

import pytest

from engine_core import Algorithm, AlgorithmMetadata, algorithm_pass, passes
from engine_core.errors import ArgumentError
from engine_core.explain import explain_algorithms, find_algorithm, format_pair, why
from engine_core.registry import Registry


class Quiet(Algorithm):
    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        raise AssertionError


class A(Quiet):
    pass


class B(Quiet):
    metadata = AlgorithmMetadata(name="bee")


class Elsewhere(Quiet):
    metadata = AlgorithmMetadata(events=("fit_end", "eval_end"))


def tell(algorithms, one, other, event, algorithm_passes=None):
    return format_pair(why(explain_algorithms(algorithms, algorithm_passes), one, other, event)).splitlines()


VERSION = Registry.scan().version_of("engine-core")
FILO, DECLARED, CHECK = (
    f"pass {name!r} of engine-core {VERSION}"
    for name in ("set_filo_order", "apply_declared_order", "warn_if_multiple_loss_interpolation")
)


def row(by):
    return f"  {by.ljust(len(CHECK))}  "


def test_the_list_decides_where_nothing_else_does():
    assert tell([A(), B()], "B", "A", "init") == [
        "init: A runs before B, list position",
        row("your list") + "A before B",
        row(FILO) + "keeps this order",
        row(DECLARED) + "keeps this order",
        row(CHECK) + "keeps this order",
        "  no constraint is declared between the two",
    ]


def test_each_pass_in_turn_says_what_it_did_to_the_two():
    class First(Quiet):
        metadata = AlgorithmMetadata(before=("bee",))

    def mine(algorithms, event):
        return passes.sort_to_back(algorithms, First)

    told = tell([First(), B()], "First", "B", "after_loss", mine)
    declared = "declared by First (before='bee')"
    assert told == [
        "after_loss: B runs before First, your pass 'mine'",
        row("your list") + "First before B",
        row(FILO) + "puts B before First: FILO, the list is reversed on AFTER events",
        row(DECLARED) + f"puts First before B: {declared}",
        row(CHECK) + "keeps this order",
        row("your pass 'mine'") + "puts B before First",
        f"  declared: First before B: {declared}",
    ]


def test_a_chain_through_others_is_shown_with_each_link():
    class Between(Quiet):
        metadata = AlgorithmMetadata(after=("first",), before=("bee",))

    class First(Quiet):
        pass

    told = tell([B(), Between(), First()], "B", "First", "init")
    chain = "declared by Between (after='first')", "declared by Between (before='bee')"
    assert told[0] == f"init: First runs before B, {chain[0]} and {chain[1]}"
    assert told[-1] == f"  declared: First before Between: {chain[0]}, and Between before B: {chain[1]}"


def test_one_that_does_not_run_there_is_reported_with_its_events():
    assert tell([A(), Elsewhere()], "A", "Elsewhere", "init") == [
        "Elsewhere does not run at init; Elsewhere lists fit_end, eval_end"
    ]


def test_one_that_a_pass_took_out_is_reported_with_the_pass():
    @algorithm_pass(changes_members=True)
    def without_b(algorithms, event):
        return [a for a in algorithms if not isinstance(a, B)]

    assert tell([A(), B()], "A", "B", "init", without_b) == [
        "B does not run at init: your pass 'without_b' takes it out"
    ]


def test_one_that_a_pass_added_is_reported_with_the_pass():
    extra = B()

    @algorithm_pass(changes_members=True)
    def add(algorithms, event):
        return [extra, *algorithms]

    told = tell([A()], "A", "B", "init", add)
    assert (told[0], told[1], told[-2]) == (
        "init: B runs before A, B was added by your pass 'add'",
        row("your list") + "only A",
        row("your pass 'add'") + "adds B",
    )


def test_an_algorithm_and_itself_are_refused():
    with pytest.raises(ArgumentError, match=r"^'A' and 'A' are the same algorithm$"):
        why(explain_algorithms([A(), B()]), "A", "A", "init")


def test_an_algorithm_is_found_by_its_unique_and_by_its_registered_name():
    explanation = explain_algorithms([A(), B(), A()])
    assert [find_algorithm(explanation, name) for name in ("A-2", "A", "bee", "B")] == ["A-2", "A", "B", "B"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bea", "'bea' is not one of the algorithms; did you mean 'bee'?"),
        ("zzz", "'zzz' is not one of the algorithms; known: A, A-2, B, a, bee"),
        ("a", "'a' names several algorithms: A, A-2; choose one"),
    ],
)
def test_a_name_that_means_none_or_several_is_refused(name, message):
    with pytest.raises(ValueError, match=r"is not one of|names several") as refusal:
        find_algorithm(explain_algorithms([A(), B(), A()]), name)
    assert str(refusal.value) == message
