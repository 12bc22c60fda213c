"""Smoothed targets against torch's own label_smoothing, on random shapes; what is refused and what left alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from engine_core.errors import EngineError
from labels_plugin import LabelSmoothing, smooth_labels

REDUCTIONS = st.sampled_from(["mean", "sum", "none"])
SHAPES = st.tuples(st.integers(1, 6), st.integers(2, 7), st.lists(st.integers(1, 3), max_size=2)).map(
    lambda sizes: (sizes[0], sizes[1], *sizes[2])
)


def loss_and_gradient(outputs, target, **options):
    outputs = outputs.clone().requires_grad_()
    loss = F.cross_entropy(outputs, target, **options)
    loss.sum().backward()
    assert outputs.grad is not None
    return loss.detach(), outputs.grad


def indices(shape, ignored, ignore_index=-100):
    """Return random classes, one of which at least is not ignored."""
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    target[target == ignore_index] = 1 - ignore_index
    masked = target.masked_fill(torch.rand(target.shape) < ignored, ignore_index)
    masked.view(-1)[0] = target.view(-1)[0]
    return masked


@settings(deadline=None, max_examples=50)
@given(
    SHAPES,
    st.floats(0, 0.99, exclude_min=True),
    REDUCTIONS,
    st.booleans(),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.sampled_from([-100, -1, 0, 1]),
    st.integers(0, 999),
)
def test_the_loss_of_smoothed_indices_is_torchs_own(shape, smoothing, reduction, weighted, ignored, index, seed):
    torch.manual_seed(seed)
    outputs, target = torch.randn(shape, dtype=torch.double), indices(shape, ignored, index)
    weight = torch.rand(shape[1], dtype=torch.double) + 0.1 if weighted else None
    given = {"weight": weight, "reduction": reduction}
    smoothed = smooth_labels(outputs, target, smoothing, ignore_index=index, **given)
    own = loss_and_gradient(outputs, smoothed, **given)
    torchs = loss_and_gradient(outputs, target, ignore_index=index, label_smoothing=smoothing, **given)
    torch.testing.assert_close(own, torchs, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=50)
@given(SHAPES, st.floats(0.01, 0.99), REDUCTIONS, st.booleans(), st.integers(0, 999))
def test_one_hot_integers_are_smoothed_as_their_indices_are(shape, smoothing, reduction, weighted, seed):
    torch.manual_seed(seed)
    outputs, target = torch.randn(shape), indices(shape, 0)
    one_hot = F.one_hot(target, shape[1]).movedim(-1, 1)
    for dtype in (torch.int64, torch.uint8):
        options = {"weight": torch.rand(shape[1]) if weighted else None, "reduction": reduction}
        smoothed = smooth_labels(outputs, one_hot.to(dtype), smoothing, **options)
        assert torch.equal(smoothed, smooth_labels(outputs, target, smoothing, **options))


@pytest.mark.parametrize("shape", [(0,), (0, 5)], ids=["indices", "one-hot integers"])
def test_a_batch_without_rows_has_no_targets(shape):
    assert smooth_labels(torch.zeros(0, 5), torch.zeros(shape, dtype=torch.long), 0.1).shape == (0, 5)


@settings(deadline=None, max_examples=50)
@given(SHAPES, st.floats(0, 0.99), REDUCTIONS, st.booleans(), st.integers(0, 999))
def test_the_loss_of_smoothed_probabilities_is_torchs_own(shape, smoothing, reduction, weighted, seed):
    torch.manual_seed(seed)
    outputs, target = torch.randn(shape, dtype=torch.double), torch.randn(shape, dtype=torch.double).softmax(1)
    options = {"reduction": reduction, "weight": torch.rand(shape[1]).double() if weighted else None}
    own = loss_and_gradient(outputs, smooth_labels(outputs, target, smoothing, **options), **options)
    torchs = loss_and_gradient(outputs, target, label_smoothing=smoothing, **options)
    torch.testing.assert_close(own, torchs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 1.0, 2.0])], ids=["plain", "weighted"])
def test_where_all_rows_are_ignored_loss_and_gradient_are_zero(weight):
    """Torch's gradient is zero as well, its loss 0 / 0."""
    outputs, target = torch.randn(4, 3), torch.full((4,), -100)
    smoothed = smooth_labels(outputs, target, 0.1, weight=weight)
    loss, gradient = loss_and_gradient(outputs, smoothed, weight=weight)
    torchs, torchs_gradient = loss_and_gradient(outputs, target, weight=weight, label_smoothing=0.1)
    assert loss == 0 and torchs.isnan()
    assert torch.equal(gradient, torchs_gradient) and not gradient.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_targets_are_as_precise_as_the_outputs_and_no_less_than_float32(dtype):
    outputs, target = torch.randn(4, 3, dtype=dtype), torch.tensor([0, 1, 2, -100])
    smoothed = smooth_labels(outputs, target, 0.1)
    assert smoothed.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert smooth_labels(outputs, torch.eye(3, dtype=dtype)[[0, 1, 2, 0]], 0.1).dtype is smoothed.dtype
    torchs = F.cross_entropy(outputs.double(), target, label_smoothing=0.1)
    torch.testing.assert_close(F.cross_entropy(outputs, smoothed).double(), torchs, rtol=1e-2, atol=1e-2)


def test_under_autocast_the_loss_is_torchs_own():
    outputs, target = torch.randn(8, 5).bfloat16(), torch.randint(5, (8,))
    smoothed = smooth_labels(outputs, target, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        own, torchs = F.cross_entropy(outputs, smoothed), F.cross_entropy(outputs, target, label_smoothing=0.1)
    torch.testing.assert_close(own, torchs)


LOGITS, LABELS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize("arguments", [{"smoothing": 1.0}, {"target_key": None}])
def test_the_constructor_refuses(arguments):
    with pytest.raises((ValueError, TypeError), match=f"^{next(iter(arguments))}="):
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
def test_the_function_refuses(outputs, target, error, message):
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
def test_settings_that_no_cross_entropy_has_are_refused(target, settings, error, message):
    with pytest.raises(error, match=message):
        smooth_labels(LOGITS, target, **settings)


@pytest.mark.parametrize("label", [3, -1])
@pytest.mark.parametrize("weight", [None, torch.ones(3)])
def test_a_label_without_a_class_is_an_error_that_names_it(label, weight):
    with pytest.raises(ValueError, match=f"labels from .*{label}.*the outputs have 3 classes, 0 to 2"):
        smooth_labels(LOGITS, torch.tensor([0, label, 2, 0]), 0.1, weight=weight)


@pytest.mark.parametrize("target", [LABELS, torch.eye(3)[LABELS]], ids=["indices", "probabilities"])
def test_neither_target_nor_outputs_are_changed_and_no_smoothing_gives_the_very_target(target):
    outputs, before = LOGITS.clone(), target.clone()
    smooth_labels(outputs, target, 0.5)
    assert torch.equal(target, before) and torch.equal(outputs, LOGITS)
    assert smooth_labels(LOGITS, target, 0) is target


@pytest.mark.full  # it imports the compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own
def test_compiled_it_looks_for_ignored_targets_too():
    """A traced graph raises no error to rely on; a backend that checks indices would raise at the call."""
    target = torch.tensor([0, -100, 2, -100])
    compiled = torch.compile(smooth_labels, backend="eager")
    assert torch.equal(compiled(LOGITS, target), smooth_labels(LOGITS, target))


def test_a_class_is_not_taken_for_an_ignored_one_by_its_dtype():
    """156 as a byte is -100."""
    outputs, target, weight = torch.zeros(2, 200), torch.tensor([156, 3]), torch.ones(200)
    smoothed = smooth_labels(outputs, target.to(torch.uint8), weight=weight)
    assert torch.equal(smoothed, smooth_labels(outputs, target, weight=weight))


def test_the_targets_say_where_the_result_is():
    torch.set_default_device("meta")
    try:
        smoothed = smooth_labels(LOGITS, LABELS)
    finally:
        torch.set_default_device(None)
    assert smoothed.device.type == "cpu"
