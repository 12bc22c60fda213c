"""What smooth_labels and LabelSmoothing refuse, and what they leave alone."""

import math
from typing import Any

import pytest
import torch

from engine_core.errors import EngineError
from labels_plugin import LabelSmoothing, smooth_labels

LOGITS, LABELS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])

WRONG = [
    ({"smoothing": 1.0}, ValueError, r"smoothing=1\.0 has to be within \[0, 1\)"),
    ({"smoothing": math.nan}, ValueError, "smoothing=nan .*finite"),
    ({"smoothing": True}, TypeError, r"smoothing=True \(bool\)"),
    ({"smoothing": "0.1"}, TypeError, r"smoothing='0\.1'"),
    ({"target_key": None}, TypeError, "target_key=None has to be an index"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_the_constructor_refuses(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LabelSmoothing(**arguments)


@pytest.mark.parametrize(
    ("outputs", "target", "error", "message"),
    [
        (torch.zeros(4, 1), LABELS, ValueError, r"2 or more classes, not \(4, 1\).*y \* \(1 - s\) \+ s / 2"),
        (torch.zeros(()), LABELS, ValueError, r"2 or more classes, not \(\)"),
        (LOGITS, torch.zeros(4), ValueError, r"float32 \(4,\)"),
        (LOGITS, torch.zeros(4, 3).long(), ValueError, r"indices \(4,\) or floats \(4, 3\), .*int64 \(4, 3\)"),
        (LOGITS, torch.tensor([[2, -1, 0]] * 4), ValueError, r"one-hot integers of that shape .*int64 \(4, 3\)"),
        (LOGITS, torch.eye(3)[LABELS].bool(), ValueError, r"bool \(4, 3\)"),
        (LOGITS, LABELS.unsqueeze(1), ValueError, r"int64 \(4, 1\)"),
        (LOGITS, LABELS[:3], ValueError, r"int64 \(3,\)"),
        (torch.zeros(2, 5, 3), torch.zeros(2, 5).long(), ValueError, "dimension 1 of the outputs"),
        ([[0.0, 1.0]], LABELS, TypeError, "outputs .* not a list"),
        (LOGITS, [0, 1, 2, 0], TypeError, "target .* not a list"),
    ],
    ids=lambda value: tuple(value.shape) if isinstance(value, torch.Tensor) else str(value)[:20],
)
def test_the_function_refuses(outputs: Any, target: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        smooth_labels(outputs, target, 0.1)
    assert isinstance(raised.value, EngineError)


@pytest.mark.parametrize("target", [LABELS, torch.eye(3)[LABELS]], ids=["indices", "probabilities"])
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"smoothing": -0.1}, ValueError, r"smoothing=-0\.1 has to be"),
        ({"reduction": "Mean"}, ValueError, "reduction='Mean' has to be one of 'mean', 'sum', 'none'"),
        ({"weight": torch.ones(2)}, ValueError, r"shape \(2,\), but the outputs have 3 classes: .* \(3,\)"),
        ({"weight": torch.ones(1, 3)}, ValueError, r"shape \(1, 3\)"),
        ({"weight": [1.0, 1.0, 1.0]}, TypeError, "weight .* not a list"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_settings_that_no_cross_entropy_has_are_refused(
    target: torch.Tensor, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        smooth_labels(LOGITS, target, **settings)


@pytest.mark.parametrize("label", [3, -1])
@pytest.mark.parametrize("weight", [None, torch.ones(3)])
def test_a_label_without_a_class_is_an_error_that_names_it(label: int, weight: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match=f"labels from .*{label}.*the outputs have 3 classes, 0 to 2"):
        smooth_labels(LOGITS, torch.tensor([0, label, 2, 0]), 0.1, weight=weight)


@pytest.mark.parametrize("target", [LABELS, torch.eye(3)[LABELS]], ids=["indices", "probabilities"])
def test_neither_target_nor_outputs_are_changed_and_no_smoothing_gives_the_very_target(target: torch.Tensor) -> None:
    outputs, before = LOGITS.clone(), target.clone()
    smooth_labels(outputs, target, 0.5)
    assert torch.equal(target, before) and torch.equal(outputs, LOGITS)
    assert smooth_labels(LOGITS, target, 0) is target


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, where it imports the compiler
def test_compiled_it_looks_for_ignored_targets_too() -> None:
    """A traced graph raises no error to rely on; a backend that checks indices would raise at the call."""
    target = torch.tensor([0, -100, 2, -100])
    compiled = torch.compile(smooth_labels, backend="eager")
    assert torch.equal(compiled(LOGITS, target), smooth_labels(LOGITS, target))


def test_a_class_is_not_taken_for_an_ignored_one_by_its_dtype() -> None:
    """156 as a byte is -100."""
    outputs, target, weight = torch.zeros(2, 200), torch.tensor([156, 3]), torch.ones(200)
    smoothed = smooth_labels(outputs, target.to(torch.uint8), weight=weight)
    assert torch.equal(smoothed, smooth_labels(outputs, target, weight=weight))


def test_the_targets_say_where_the_result_is() -> None:
    torch.set_default_device("meta")
    try:
        smoothed = smooth_labels(LOGITS, LABELS)
    finally:
        torch.set_default_device(None)
    assert smoothed.device.type == "cpu"
