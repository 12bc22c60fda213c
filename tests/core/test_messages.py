"""Words for messages: lists of names, and exceptions in a line."""

import pytest

from engine_core.messages import cause_of, enumerated


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("", ""),
        ("a", "a"),
        ("ab", "a and b"),
        ("abcd", "a, b, c and d"),
        ("abcde", "a, b, c and 2 more"),
        ("abcdefg", "a, b, c and 4 more"),
    ],
)
def test_enumerated_gives_four_names_or_three_and_how_many_more(names, words):
    assert enumerated(names) == words


def test_enumerated_gives_as_many_as_it_is_told():
    assert enumerated("abcde", most=5) == "a, b, c, d and e"


class CannotBeShown(Exception):  # noqa: N818
    def __str__(self):
        raise KeyError


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SystemExit("no GPU here"), "SystemExit: no GPU here"),
        (ValueError("in\n  two lines"), "ValueError: in two lines"),
        (TypeError(), "TypeError"),
        (SyntaxError("invalid", ("plugin.py", 3, 1, "")), "SyntaxError: invalid (at plugin.py:3)"),
        (CannotBeShown(), "CannotBeShown: it can't be shown, since its __str__ raises KeyError"),
    ],
)
def test_cause_of_an_exception_is_its_type_and_its_message_in_one_line(error, cause):
    assert cause_of(error) == cause
