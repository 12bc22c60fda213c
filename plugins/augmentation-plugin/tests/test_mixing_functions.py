"""MixUp and CutMix: the paper's formulas, the laws of the draws, mixed targets and losses, and what is refused."""

import functools
import math

import pytest
import torch
from augmentation_parts import BOTH, seeded
from scipy import stats
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import CutMix, MixUp, cutmix_batch, mix_losses, mix_targets, mixup_batch
from augmentation_plugin.pairings import draw
from augmentation_plugin.pasting import box_of, paste
from engine_core import Engine, Logger, State
from engine_core.errors import ArgumentError, ArgumentTypeError, EngineError


@pytest.mark.parametrize("shape", [(7,), (7, 2, 5, 4)])
def test_each_row_is_lambda_of_itself_and_the_rest_of_its_partner(shape):
    rows = torch.randn(shape, dtype=torch.double)
    mixed, partner, lam = mixup_batch(rows, torch.arange(7), alpha=1.0, generator=seeded())
    for i in range(7):
        torch.testing.assert_close(mixed[i], lam * rows[i] + (1 - lam) * rows[partner[i]], rtol=1e-12, atol=1e-12)


def test_each_pairing_of_three_rows_is_as_likely():
    generator = seeded()
    counts = {}
    for _ in range(1200):
        order = tuple(draw(0.2, generator).pairing(3).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


@pytest.mark.parametrize("alpha", [0.2, 8.0])
def test_lambda_is_drawn_from_beta_of_alpha_and_alpha(alpha):
    generator = seeded(5)
    drawn = [draw(alpha, generator).lam for _ in range(4000)]
    assert stats.kstest(drawn, stats.beta(alpha, alpha).cdf).pvalue > 0.001


def test_a_tiny_alpha_gives_zero_and_one_alike():
    generator = seeded(5)
    drawn = torch.tensor([draw(1e-4, generator).lam for _ in range(2000)])
    assert ((drawn < 0.01) | (drawn > 0.99)).all()
    assert stats.binomtest(int((drawn > 0.5).sum()), 2000).pvalue > 0.001


def test_lambda_pairing_and_place_are_independent():
    generator = seeded(6)
    draws = [draw(1.0, generator) for _ in range(3000)]
    rows = torch.tensor([[d.lam, *d.place, float(d.pairing(16)[0])] for d in draws]).T
    off_diagonal = torch.corrcoef(rows)[~torch.eye(4, dtype=torch.bool)]
    assert off_diagonal.abs().max() < 4 / math.sqrt(3000)


def test_without_a_generator_draws_differ_and_no_global_one_is_touched():
    before = torch.get_rng_state()
    lambdas = {mixup_batch(torch.zeros(2), torch.zeros(2), alpha=1.0).lam for _ in range(5)}
    assert len(lambdas) == 5
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_dtype_and_memory_format_stay(dtype):
    images = torch.randn(4, 3, 5, 5).to(dtype).contiguous(memory_format=torch.channels_last)
    before = images.clone()
    mixed = mixup_batch(images, torch.arange(4), generator=seeded()).input
    assert mixed.dtype is dtype
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


def test_a_row_alone_is_mixed_with_itself():
    row = torch.randn(1, 3)
    mixed, paired, _ = mixup_batch(row, torch.tensor([2]), alpha=1.0, generator=seeded())
    assert torch.equal(mixed, row)
    assert paired.tolist() == [2]


def test_targets_in_containers_are_paired_alike():
    target = {"a": torch.arange(6), "b": (torch.arange(6) * 10, list("abcdef"))}
    paired = mixup_batch(torch.zeros(6), target, generator=seeded()).paired_target
    assert torch.equal(paired["a"] * 10, paired["b"][0])
    assert paired["b"][1] == ["abcdef"[i] for i in paired["a"]]


@pytest.mark.parametrize(
    ("rows", "alpha", "error", "words"),
    [
        (torch.zeros(4, dtype=torch.long), 0.2, ArgumentError, "int64.*tokens"),
        (torch.zeros(4, dtype=torch.uint8), 0.2, ArgumentError, "uint8.*floats first"),
        (torch.tensor(1.0), 0.2, ArgumentError, "one number"),
        ([1.0, 2.0], 0.2, ArgumentTypeError, "a list"),
        (torch.zeros(4), 0, ArgumentError, "alpha=0 has to be within"),
        (torch.zeros(4), "a", ArgumentTypeError, "alpha='a'"),
    ],
)
def test_what_cannot_be_blended_is_refused(rows, alpha, error, words):
    with pytest.raises(error, match=words):
        mixup_batch(rows, None, alpha)


def test_there_has_to_be_a_target_for_each_row_or_none_at_all():
    with pytest.raises(ArgumentError, match="4 rows and the targets 3"):
        mixup_batch(torch.zeros(4), torch.zeros(3))
    assert mixup_batch(torch.zeros(4), None).paired_target is None


def by_hand(images, order, lam, place):
    """Decide of each pixel whether it is within half a box of the centre, as the paper draws it, on whole pixels."""
    rows, channels, height, width = images.shape
    sides = [int(length * math.sqrt(1 - lam)) for length in (height, width)]
    centre = [int(height * place[0]), int(width * place[1])]
    mixed, pasted = images.tolist(), 0
    for y in range(height):
        for x in range(width):
            inside = [0 <= at - c + side // 2 < side for at, c, side in zip((y, x), centre, sides, strict=True)]
            pasted += all(inside)
            for i in range(rows):
                for c in range(channels):
                    if all(inside):
                        mixed[i][c][y][x] = images[order[i], c, y, x].item()
    return mixed, 1 - pasted / (height * width)


@pytest.mark.parametrize("size", [(6, 6), (5, 9), (1, 7)])
def test_each_pixel_is_that_of_the_box_or_of_the_image_and_lambda_the_share_that_stays(size):
    for seed in range(8):
        images, drawn = torch.randn(3, 2, *size), draw(1.0, seeded(seed))
        order = drawn.pairing(3)
        mixed, lam = paste(images, order, drawn.lam, drawn.place)
        assert (mixed.tolist(), lam) == by_hand(images, order.tolist(), drawn.lam, drawn.place)


def test_the_centre_is_uniform_over_the_pixels():
    generator = seeded(2)
    counts = torch.zeros(4, 3)
    for _ in range(2400):
        place = draw(1.0, generator).place
        box = box_of(4, 3, 1 - 0.4**2, place)  # 1 x 1 pixels
        assert (box.bottom - box.top, box.right - box.left) == (1, 1)
        counts[box.top, box.left] += 1
    assert stats.chisquare(counts.flatten().tolist()).pvalue > 0.001


def test_the_same_place_is_the_same_part_of_an_image_of_another_size():
    small, large = (box_of(size, size, 0.75, (0.25, 0.5)) for size in (16, 64))
    assert [4 * edge for edge in small] == list(large)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_dtype_and_memory_format_of_images_stay(dtype):
    images = torch.randint(9, (4, 3, 8, 8)).to(dtype).contiguous(memory_format=torch.channels_last)
    before = images.clone()
    mixed, lam = paste(images, torch.tensor([1, 2, 3, 0]), 0.5, (0.5, 0.5))
    assert mixed.dtype is dtype
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)
    assert lam < 1


@pytest.mark.parametrize(
    ("images", "error", "words"),
    [
        (torch.zeros(4, 8, 8), ArgumentError, r"\(4, 8, 8\).*unsqueeze"),
        (torch.zeros(4, 3, 0, 8), ArgumentError, r"without pixels.*\(4, 3, 0, 8\)"),
        (torch.zeros(4, 3, 8, 8, 8), ArgumentError, "convert them in the data"),
        ("images", ArgumentTypeError, "a str"),
    ],
)
def test_anything_but_images_is_refused(images, error, words):
    with pytest.raises(error, match=words):
        cutmix_batch(images, None)


LAM = 0.3


def outputs_and_targets(*positions):
    outputs = torch.randn(6, 5, *positions, dtype=torch.double, requires_grad=True)
    target = torch.randint(5, (6, *positions))
    return outputs, target, target[torch.randperm(6)]


def gradient(loss, outputs):
    return torch.autograd.grad(loss, outputs)[0]


@pytest.mark.parametrize(
    ("positions", "reduction", "smoothing"), [((), "mean", 0.0), ((7,), "sum", 0.0), ((3, 4), "mean", 0.1)]
)
def test_cross_entropy_of_mixed_targets_is_the_mixture_of_two_losses(positions, reduction, smoothing):
    loss_fn = nn.CrossEntropyLoss(reduction=reduction, label_smoothing=smoothing)
    outputs, target, paired = outputs_and_targets(*positions)
    of_targets = loss_fn(outputs, mix_targets(target, paired, LAM, 5, torch.double))
    of_losses = mix_losses(loss_fn(outputs, target), loss_fn(outputs, paired), LAM)
    by_hand = LAM * loss_fn(outputs, target) + (1 - LAM) * loss_fn(outputs, paired)
    torch.testing.assert_close(of_targets, by_hand, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of_losses, by_hand, rtol=0, atol=0)
    torch.testing.assert_close(gradient(of_targets, outputs), gradient(by_hand, outputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("loss_fn", "losses", "gradients"), [(F.mse_loss, (0.25, 1.25), (1.0, 1.0)), (F.l1_loss, (0.5, 1.0), (1.0, 0.0))]
)
def test_other_losses_distinguish_the_two_forms(loss_fn, losses, gradients):
    outputs, target, paired = torch.tensor([0.5], requires_grad=True), torch.tensor([1.0]), torch.tensor([-1.0])
    of_targets = loss_fn(outputs, mix_targets(target, paired, 0.5))
    of_losses = mix_losses(loss_fn(outputs, target), loss_fn(outputs, paired), 0.5)
    assert (of_targets.item(), of_losses.item()) == losses
    assert (gradient(of_targets, outputs).item(), gradient(of_losses, outputs).item()) == gradients


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_classes_become_probabilities(dtype):
    target, paired = torch.tensor([0, 1, 1]).to(dtype), torch.tensor([1, 0, 1]).to(dtype)
    expected = torch.tensor([[0.25, 0.75, 0.0], [0.75, 0.25, 0.0], [0.0, 1.0, 0.0]])
    assert torch.equal(mix_targets(target, paired, 0.25, 3), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_floats_are_mixed_as_they_are(dtype):
    target, paired = torch.rand(4, 3).to(dtype), torch.rand(4, 3).to(dtype)
    mixed = mix_targets(target, paired, LAM)
    assert mixed.dtype is dtype
    torch.testing.assert_close(mixed, LAM * target + (1 - LAM) * paired)


@pytest.mark.parametrize("wrong", [-100, 5])
def test_anything_but_a_class_is_refused(wrong):
    with pytest.raises(ArgumentError, match=rf"{wrong}.*interpolate the losses"):
        mix_targets(torch.tensor([0, wrong]), torch.tensor([wrong, 0]), LAM, 5)


def test_classes_need_their_number():
    with pytest.raises(ArgumentError, match="give num_classes"):
        mix_targets(torch.tensor([0]), torch.tensor([0]), LAM)


class Parts(tuple):
    """A named tuple is one with `_fields`, made of separate arguments."""

    __slots__ = ()
    _fields = ("a", "b")

    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))


@pytest.mark.parametrize(
    ("loss", "paired", "expected"),
    [
        (4.0, 8.0, 5.0),
        ((4.0, 0.0), (8.0, 4.0), (5.0, 1.0)),
        ({"total": 4.0, "x": {"y": 0.0}}, {"total": 8.0, "x": {"y": 4.0}}, {"total": 5.0, "x": {"y": 1.0}}),
        (Parts(4.0, 0.0), Parts(8.0, 4.0), Parts(5.0, 1.0)),
    ],
)
def test_losses_are_mixed_part_by_part(loss, paired, expected):
    mixed = mix_losses(loss, paired, 0.75)
    assert mixed == expected
    assert type(mixed) is type(expected)


@pytest.mark.parametrize(
    ("loss", "paired"), [({"a": 1.0}, {"b": 1.0}), ({"a": 1.0}, 1.0), ((1.0,), (1.0, 2.0)), ((1.0,), 1.0)]
)
def test_losses_of_different_parts_are_refused(loss, paired):
    with pytest.raises(ArgumentError, match="paired targets"):
        mix_losses(loss, paired, 0.5)


@pytest.mark.parametrize("lam", [-0.1, float("nan"), "0.5"])
def test_an_invalid_share_is_refused(lam):
    with pytest.raises((ValueError, TypeError), match="lam="):
        mix_targets(torch.tensor([0]), torch.tensor([0]), lam, 3)
    with pytest.raises((ValueError, TypeError), match="lam="):
        mix_losses(1.0, 2.0, lam)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, "float32"])
def test_a_dtype_without_shares_is_refused(dtype):
    with pytest.raises((ValueError, TypeError), match="dtype="):
        mix_targets(torch.tensor([0]), torch.tensor([1]), LAM, 3, dtype)


@pytest.mark.parametrize(
    ("target", "paired", "words"),
    [
        ([0, 1], torch.tensor([0, 1]), "target has to be a tensor, not a list"),
        (torch.tensor([0, 1]), [0, 1], "paired_target has to be a tensor, not a list"),
        (torch.tensor([0, 1]), torch.tensor([0]), r"\(2,\) of torch.int64 can't be mixed with \(1,\)"),
        (torch.tensor([0, 1]), torch.zeros(2), "of torch.float32"),
    ],
)
def test_targets_that_do_not_go_together_are_refused(target, paired, words):
    with pytest.raises((ValueError, TypeError), match=words):
        mix_targets(target, paired, LAM, 2)


IMAGES, CLASSES = torch.zeros(4, 3, 8, 8), torch.arange(4)


def first_batch(algorithm, batch=(IMAGES, CLASSES), loss_fn=F.cross_entropy, model=None):
    """Fire the event at which a run looks at its first batch."""
    state = State(model=model or nn.Identity(), algorithms=[algorithm], loss_fn=loss_fn, batch=batch, seed=1)
    with Engine(state, Logger()) as engine:
        engine.run_event("after_dataloader")
    return state


@BOTH
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"alpha": 0}, ArgumentError),
        ({"alpha": 1e308}, ArgumentError),
        ({"alpha": "0.2"}, ArgumentTypeError),
        ({"interpolate_loss": 1}, ArgumentTypeError),
        ({"input_key": 0.5}, ArgumentTypeError),
        ({"target_key": None}, ArgumentTypeError),
    ],
)
def test_wrong_arguments_are_refused_at_once(kind, arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        kind(**arguments)


@BOTH
@pytest.mark.parametrize("loss_fn", [nn.NLLLoss(), nn.HingeEmbeddingLoss()])
def test_a_loss_of_classes_alone_is_refused_unless_losses_are_mixed(kind, loss_fn):
    with pytest.raises(ArgumentError, match=r"takes (classes|1 and -1), not mixtures.*set interpolate_loss=True"):
        first_batch(kind(), loss_fn=loss_fn)
    first_batch(kind(interpolate_loss=True), loss_fn=loss_fn)


@BOTH
@pytest.mark.parametrize("make", [nn.CrossEntropyLoss, functools.partial(functools.partial, F.cross_entropy)])
@pytest.mark.parametrize(
    ("setting", "words"),
    [({"weight": torch.ones(4)}, "divides by the class weights"), ({"ignore_index": 3}, "with ignore_index=3")],
)
def test_what_cross_entropy_does_otherwise_for_dense_targets_is_refused(kind, make, setting, words):
    with pytest.raises(ArgumentError, match=f"{words}.*set interpolate_loss=True"):
        first_batch(kind(), loss_fn=make(**setting))
    first_batch(kind(interpolate_loss=True), loss_fn=make(**setting))
    first_batch(kind(), (IMAGES, torch.rand(4, 4)), make(weight=torch.ones(4)))  # dense before, dense after


@BOTH
def test_ignored_targets_have_no_dense_form(kind):
    batch = IMAGES, torch.tensor([0, -100, 1, 2])
    with pytest.raises(ArgumentError, match=r"-100 isn't one.*set interpolate_loss=True"):
        first_batch(kind(), batch)
    first_batch(kind(interpolate_loss=True), batch)


@BOTH
def test_an_ignored_target_in_a_later_batch_is_refused_there(kind):
    state = State(model=nn.Identity(), algorithms=[kind()], seed=1, batch=(IMAGES, torch.tensor([0, -100, 1, 2])))
    state.outputs = torch.zeros(4, 3)
    with Engine(state, Logger()) as engine, pytest.raises(EngineError, match="ignores have no dense form"):
        engine.run_event("before_forward")
        engine.run_event("before_loss")


@BOTH
@pytest.mark.parametrize("outputs", [torch.zeros(4), torch.zeros(4, 3, 2)])
def test_outputs_that_do_not_show_the_classes_are_refused(kind, outputs):
    state = State(model=nn.Identity(), algorithms=[kind()], seed=1, batch=(IMAGES, CLASSES), outputs=outputs)
    with Engine(state, Logger()) as engine, pytest.raises(ArgumentError, match="set interpolate_loss=True"):
        engine.run_event("before_forward")
        engine.run_event("before_loss")


@BOTH
@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((IMAGES,), "target_key=1: a batch of type tuple with 1 items has no item 1; set target_key"),
        ({"image": IMAGES, "label": CLASSES}, "input_key=0.*has no item"),
        ((IMAGES, CLASSES[:3]), r"batch\[1\] of shape \(3,\) has 3 rows and batch\[0\]"),
        ((IMAGES, {"a": CLASSES}), "the targets are a dict.*set interpolate_loss=True"),
        (((IMAGES, IMAGES), CLASSES), "one tensor.*a tuple"),
    ],
)
def test_batches_that_cannot_be_mixed_are_refused(kind, batch, words):
    with pytest.raises(EngineError, match=words):
        first_batch(kind(), batch)


def test_mixup_refuses_token_ids_and_says_why():
    with pytest.raises(ArgumentError, match=r"int64.*the mean of two ids, such as tokens, is the id of something else"):
        first_batch(MixUp(), (torch.zeros(4, 7, dtype=torch.long), CLASSES))


def test_cutmix_takes_images_of_bytes_and_refuses_anything_but_images():
    first_batch(CutMix(), (IMAGES.byte(), CLASSES))
    with pytest.raises(ArgumentError, match=r"input_key=0\) has to be images \(N, C, H, W\), not \(4, 7\)"):
        first_batch(CutMix(), (torch.zeros(4, 7), CLASSES))


@pytest.mark.parametrize(
    "target", [torch.zeros(4, 8, 8).long(), torch.zeros(4, 2, 8, 8), {"mask": torch.zeros(4, 8, 8)}]
)
@pytest.mark.parametrize("interpolate_loss", [False, True])
def test_cutmix_refuses_targets_of_pixels_that_mixup_takes(target, interpolate_loss):
    with pytest.raises(ArgumentError, match="are per pixel"):
        first_batch(CutMix(1.0, interpolate_loss), (IMAGES, target))
    if isinstance(target, torch.Tensor) or interpolate_loss:
        first_batch(MixUp(1.0, interpolate_loss), (IMAGES, target))


@BOTH
def test_a_second_loss_needs_a_loss_function(kind):
    with pytest.raises(ArgumentError, match="Identity has no loss: give Trainer"):
        first_batch(kind(interpolate_loss=True), loss_fn=None)
    first_batch(kind(), loss_fn=None)
