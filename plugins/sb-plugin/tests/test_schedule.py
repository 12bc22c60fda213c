"""When Selective Backprop is on."""

import pytest

from sb_plugin import should_selective_backprop


@pytest.mark.parametrize(("done", "expected"), [(0.0, False), (0.499, False), (0.5, True), (0.899, True), (0.9, False)])
def test_start_is_included_and_end_is_not(done: float, expected: bool) -> None:
    assert should_selective_backprop(done, 0) is expected


@pytest.mark.parametrize(
    ("interrupt", "expected"),
    [(0, [1, 1, 1, 1, 1, 1]), (1, [0, 0, 0, 0, 0, 0]), (2, [1, 0, 1, 0, 1, 0]), (3, [1, 1, 0, 1, 1, 0])],
)
def test_every_interrupt_th_batch_is_an_ordinary_one(interrupt: int, expected: list[int]) -> None:
    assert [should_selective_backprop(0.0, batch, 0.0, 1.0, interrupt) for batch in range(6)] == expected
