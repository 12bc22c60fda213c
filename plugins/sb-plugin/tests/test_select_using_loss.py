"""The function of one batch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sb_plugin import functional, select_using_loss


def absolute(outputs, targets, reduction="mean"):
    return (outputs - targets).abs()


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("selector", "keep", "more"),
    [("composer", 0.1, {}), ("cdf", 0.5, {}), ("topk", 0.5, {"floor": 0.5}), ("uniform", 0.6, {"multiple_of": 8})],
)
def test_the_rows_are_those_that_are_drawn_by_the_losses(selector, keep, more):
    x = torch.arange(40.0) * 7 % 40
    generator, own = seeded(3), seeded(3)
    given = {"generator": generator, "selector": selector, **more}
    kept, _ = select_using_loss(x, x, nn.Identity(), lambda o, t, reduction: o, keep, **given)
    if selector != "uniform":  # which scores nothing
        functional.fresh_seed(own)
    k = functional.number_kept(40, keep, more.get("multiple_of", 1))
    assert kept.tolist() == x[functional.draw_rows(x, k, keep, own, selector, more.get("floor", 0.0))].tolist()
    assert torch.equal(own.get_state(), generator.get_state())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_and_full_size_are_kept(dtype):
    x, y = torch.randn(8, 1, 6, 6).to(dtype), torch.randn(8).to(torch.float16)
    rows, targets = select_using_loss(x, y, lambda v: v.flatten(1).mean(1), absolute, 0.5, 0.5)
    assert (rows.dtype, rows.shape, targets.dtype) == (dtype, (4, 1, 6, 6), torch.float16)


@pytest.mark.parametrize(
    ("shape", "memory"), [((8, 3, 6, 6), torch.channels_last), ((8, 3, 6, 6, 6), torch.channels_last_3d)]
)
def test_memory_format_is_kept(shape, memory):
    x = torch.randn(shape).to(memory_format=memory)
    rows, _ = select_using_loss(x, torch.zeros(8), lambda v: v.flatten(1).mean(1), absolute)
    assert rows.is_contiguous(memory_format=memory)
    assert not rows.is_contiguous()


def test_where_nothing_is_dropped_the_same_objects_come_back_and_no_model_runs():
    def never(x):
        raise AssertionError

    for x, keep in ((torch.zeros(8), 1), (torch.zeros(1), 0.3), (torch.zeros(0), 0.5)):
        y = torch.zeros(len(x))
        rows, targets = select_using_loss(x, y, never, absolute, keep)
        assert rows is x
        assert targets is y


@pytest.mark.parametrize(
    ("shape", "mode"), [((4, 2, 8), "linear"), ((4, 2, 8, 8), "bilinear"), ((4, 2, 8, 8, 8), "trilinear")]
)
def test_scoring_sees_the_scaled_input(shape, mode):
    x, seen = torch.randn(shape), []

    def model(received):
        seen.append(received)
        return received.flatten(1).mean(1)

    rows, _ = select_using_loss(x, torch.zeros(4), model, absolute, 0.5, 0.5)
    assert rows.shape == (2, *shape[1:])
    assert torch.equal(seen[0], F.interpolate(x, scale_factor=0.5, mode=mode))


def fixed_size_net():
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 4))


def test_a_net_of_fixed_input_size_is_scored_at_full_size_with_a_warning():
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    net = fixed_size_net()
    full = select_using_loss(x, y, net, F.cross_entropy, generator=seeded(3))
    with pytest.warns(
        UserWarning, match=r"Sequential can't take .*scale_factor=0\.5.*RuntimeError.*set scale_factor=1"
    ):
        small = select_using_loss(x, y, net, F.cross_entropy, 0.5, 0.5, generator=seeded(3))
    assert torch.equal(small[0], full[0])
    assert net[0].num_batches_tracked == 0


def test_a_model_that_fails_at_any_size_raises_its_own_error_and_no_warning():
    def broken(x):
        raise RuntimeError(f"no use for {tuple(x.shape)}")

    with pytest.raises(RuntimeError, match=r"no use for \(8, 1, 8, 8\)"):
        select_using_loss(torch.randn(8, 1, 8, 8), torch.zeros(8), broken, absolute, 0.5, 0.5)


def test_without_a_generator_a_private_one_draws():
    x = torch.arange(64.0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, _ = select_using_loss(x, x, nn.Identity(), absolute)
    torch.manual_seed(1)
    second, _ = select_using_loss(x, x, nn.Identity(), absolute)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.tolist() != second.tolist()


def test_a_private_generator_starts_anywhere(monkeypatch):
    """With torch's default seed every process would make the same choices."""
    monkeypatch.setattr(functional, "_private_generator", functional._private_generator.__wrapped__)
    x = torch.arange(64.0)
    choices = [select_using_loss(x, x, nn.Identity(), absolute)[0].tolist() for _ in range(2)]
    assert choices[0] != choices[1]


def test_a_forked_process_draws_from_its_own_generator(monkeypatch):
    x = torch.arange(64.0)
    generators = []
    for process in (1, 2, 1):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        select_using_loss(x, x, nn.Identity(), absolute)
        generators.append(functional._private_generator(x.device, process))
    assert generators[0] is generators[2] is not generators[1]
    assert generators[0].initial_seed() != generators[1].initial_seed()


def test_the_uniform_selector_calls_neither_model_nor_loss():
    def never(*_, reduction="mean"):
        raise AssertionError

    x = torch.arange(8.0)
    kept, targets = select_using_loss(x, -x, never, never, generator=seeded(0), selector="uniform")
    assert torch.equal(kept, -targets)
    assert len(kept) == 4
