"""On a CUDA device CutOut and ProgressiveResizing draw what they draw on the CPU, and do not wait for the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from augmentation_plugin import cutout_batch, resize_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_holes_are_those_of_the_cpu() -> None:
    images = torch.randn(16, 3, 32, 32).to(memory_format=torch.channels_last)
    on_device = images.cuda()
    with waiting_is_an_error():
        holed = cutout_batch(on_device, 3, 0.3, generator=seeded())
    assert holed.stride() == images.stride()
    assert torch.equal(holed.cpu(), cutout_batch(images, 3, 0.3, generator=seeded()))


@pytest.mark.parametrize("mode", ["resize", "crop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_sizes_and_windows_are_those_of_the_cpu(mode: str, dtype: torch.dtype) -> None:
    images, masks = (torch.rand(8, 3, 32, 48) * 255).to(dtype), torch.randint(9, (8, 32, 48))
    given = images.cuda(), masks.cuda()
    with waiting_is_an_error():
        smaller, targets = resize_batch(*given, 0.6, mode, resize_targets=True, generator=seeded())
    here, here_targets = resize_batch(images, masks, 0.6, mode, resize_targets=True, generator=seeded())
    assert smaller.dtype is dtype and torch.equal(targets.cpu(), here_targets)
    torch.testing.assert_close(smaller.cpu(), here, rtol=1e-2, atol=1)
