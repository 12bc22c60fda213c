"""What only a CUDA device shows. Skipped where there is none."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core.errors import ArgumentError

from .parts import Memory, at, batches, linear, net, same, trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_auto_is_cuda_and_the_loaders_own_batches_stay_where_they_are():
    seen = []
    data = batches(8, 8)
    made = trainer(data, device="auto", callbacks=at("before_forward", lambda s: seen.append(s.batch[0].device.type)))
    made.fit()
    assert made.state.device.type == "cuda"
    assert {p.device.type for p in made.state.model.parameters()} == {"cuda"}
    assert seen == ["cuda", "cuda"]
    assert {tensor.device.type for batch in data for tensor in batch} == {"cpu"}


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "amp_fp16"])
def test_it_trains_as_the_loop_by_hand(precision):
    dtype = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(precision)
    ours, theirs = linear(), linear().cuda()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "amp_fp16")
    for inputs, targets in batches(8, 8, 5):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype or torch.float16, enabled=dtype is not None):
            loss = F.cross_entropy(theirs(inputs.cuda()), targets.cuda())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
    trainer(batches(8, 8, 5), ours, device="cuda", precision=precision, grad_clip_norm=0.05).fit()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("loggers", [None, Memory()], ids=["alone", "logged"])
def test_a_step_is_queued_while_the_device_still_works_on_it(loggers):
    done, works = torch.cuda.Event(), []

    def work(state):
        torch.cuda._sleep(200_000_000)  # cycles, about a tenth of a second
        done.record()

    callbacks = [at("before_forward", work), at("batch_end", lambda state: works.append(not done.query()))]
    trainer(batches(8, 8, 8, 8), device="cuda", callbacks=callbacks, loggers=loggers).fit()
    assert works[1:] == [True] * 3  # kernels are loaded in the first step


def test_losses_are_read_late_and_none_is_lost():
    late, at_once = Memory(), Memory()
    for device, memory in {"cuda": late, "cpu": at_once}.items():
        settings = {"eval_dataloader": batches(3), "eval_interval": "2ba", "loggers": memory}
        trainer(batches(8, 8, 8), device=device, **settings).fit()
    names, expected = ([(step, list(metrics)) for step, metrics in memory.metrics] for memory in (late, at_once))
    assert names == expected
    assert late.values("train/loss")[0][1] == pytest.approx(at_once.values("train/loss")[0][1], rel=1e-4)


def test_evaluation_leaves_the_devices_generator():
    def weights(**settings):
        model = net(dropout=0.5)
        trainer(batches(8, 8), model, device="cuda", max_duration="2ep", seed=3, **settings).fit()
        return model.state_dict()

    def draw(state):
        torch.rand(3, device="cuda")

    evaluated = weights(eval_dataloader=batches(3), callbacks=at("eval_batch_start", draw))
    assert same(evaluated, weights())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cpu"}, r"the model is on cuda:0 and device is 'cpu'; move it with model.to\(...\)"),
        ({"device": "cuda:63"}, "device 'cuda:63' is not available here; use 'auto' or 'cpu'"),
    ],
)
def test_a_model_on_another_device_and_a_device_that_is_not_there_are_refused(settings, message):
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        trainer(model=linear().to("cuda:0"), **settings)


def test_a_model_that_is_there_already_stays_on_its_own_device():
    home = torch.device("cuda", torch.cuda.device_count() - 1)
    assert trainer(model=linear().to(home), device="cuda").state.device == home
    assert trainer(model=linear().to(home), device="auto").state.device == home
