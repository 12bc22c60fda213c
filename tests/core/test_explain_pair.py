"""Why one of two comes first: every reason, for what is there, and a plain answer for what is not."""

import pytest

from engine_core import algorithm_pass
from engine_core.explain import explain_algorithms, find_algorithm, format_pair, why
from engine_core.registry import Registry

from .parts import A, B, made


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
        *(row(by) + "keeps this order" for by in (FILO, DECLARED, CHECK)),
        "  no constraint is declared between the two",
    ]


def test_each_pass_in_turn_says_what_it_did_to_the_two():
    def mine(algorithms, event):
        return algorithms[::-1]

    declared = "declared by First (before='b')"
    assert tell([made("First", before=("b",)), B()], "First", "B", "after_loss", mine) == [
        "after_loss: B runs before First, your pass 'mine'",
        row("your list") + "First before B",
        row(FILO) + "puts B before First: FILO, the list is reversed on AFTER events",
        row(DECLARED) + f"puts First before B: {declared}",
        row(CHECK) + "keeps this order",
        row("your pass 'mine'") + "puts B before First",
        f"  declared: First before B: {declared}",
    ]


def test_a_chain_through_others_is_shown_with_each_link():
    told = tell([B(), made("Between", after=("a",), before=("b",)), A()], "B", "A", "init")
    chain = "declared by Between (after='a')", "declared by Between (before='b')"
    assert told[0] == f"init: A runs before B, {chain[0]} and {chain[1]}"
    assert told[-1] == f"  declared: A before Between: {chain[0]}, and Between before B: {chain[1]}"


def test_one_that_a_pass_took_out_or_added_is_reported_with_the_pass():
    extra = B()
    without_b = algorithm_pass(changes_members=True, name="without_b")(lambda algorithms, event: algorithms[:1])
    add = algorithm_pass(changes_members=True, name="add")(lambda algorithms, event: [extra, *algorithms])
    out = "B does not run at init: your pass 'without_b' takes it out"
    assert tell([A(), B()], "A", "B", "init", without_b) == [out]
    told = tell([A()], "A", "B", "init", add)
    assert (told[0], told[1], told[-2]) == (
        "init: B runs before A, B was added by your pass 'add'",
        row("your list") + "only A",
        row("your pass 'add'") + "adds B",
    )


def test_an_algorithm_is_found_by_its_unique_and_by_its_registered_name():
    explanation = explain_algorithms([A(), made("B", name="bee"), A()])
    assert [find_algorithm(explanation, name) for name in ("A-2", "A", "bee", "B")] == ["A-2", "A", "B", "B"]
    for name, message in [
        ("bea", "'bea' is not one of the algorithms; did you mean 'bee'?"),
        ("zzz", "'zzz' is not one of the algorithms; known: A, A-2, B, a, bee"),
        ("a", "'a' names several algorithms: A, A-2; choose one"),
    ]:
        with pytest.raises(ValueError, match=r"is not one of|names several") as refusal:
            find_algorithm(explanation, name)
        assert str(refusal.value) == message
