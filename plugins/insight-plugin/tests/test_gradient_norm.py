"""The callback `gradient_norm`: the norm as the loop clipped it, and of what the optimizers step with."""

from typing import Any

import pytest
import torch
from parts import Memory, acting, at, batches, linear, steps_by_hand, trainer
from torch import nn

from engine_core import Event, Logger, State
from insight_plugin import GradientNorm


def norms_by_hand(*sizes: int, limit: float = float("inf")) -> list[float]:
    found: list[float] = []
    for model, *_ in steps_by_hand(*sizes):
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
        for parameter in model.parameters():
            parameter.grad *= min(1.0, limit / found[-1])
    return found


def logged(**settings: Any) -> tuple[list[Any], list[Any]]:
    """Return the norms by step, before and after clipping."""
    memory = Memory()
    trainer(batches(8, 5, 8), loggers=memory, **{"callbacks": "gradient_norm", **settings}).fit()
    return memory.values("train/gradient_norm"), memory.values("train/gradient_norm_clipped")


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 3}, {"eval_dataloader": batches(3)}])
def test_without_clipping_it_is_the_norm_of_all_gradients_under_the_step_of_the_loss(settings: dict[str, Any]) -> None:
    norms, clipped = logged(**settings)
    assert norms == [(step, pytest.approx(norm)) for step, norm in enumerate(norms_by_hand(8, 5, 8))]
    assert clipped == []


def test_with_clipping_there_is_the_norm_before_and_the_one_after() -> None:
    expected, kept = norms_by_hand(8, 5, 8, limit=0.3), list[float]()
    keep = at("after_train_batch", lambda state: kept.append(state.gradient_norm.item()))
    norms, clipped = logged(grad_clip_norm=0.3, callbacks=[keep, "gradient_norm"])
    assert norms == [(step, pytest.approx(norm, rel=1e-4)) for step, norm in enumerate(expected)]
    assert clipped == [(step, pytest.approx(min(norm, 0.3), rel=1e-4)) for step, norm in enumerate(expected)]
    assert min(expected) > 0.3
    assert [norm for _, norm in norms] == kept  # which the loop has measured already


def skip_second(state: State) -> None:
    if state.timestamp.batch == 1:
        state.skip_step()


@pytest.mark.parametrize("settings", [{}, {"grad_clip_norm": 0.3}])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_skipped_step_logs_none_whoever_is_listed_first(settings: dict[str, Any], is_first: bool) -> None:
    skips = at("after_train_batch", skip_second)
    both = [skips, GradientNorm()] if is_first else [GradientNorm(), skips]
    assert [[step for step, _ in norms] for norms in logged(callbacks=both, **settings)] == [
        *([0, 2], [0, 2] if settings else []),
    ]


def again(event: Event, state: State) -> None:
    """Step with the gradients at other weights, as sharpness-aware minimization does."""
    model: Any = state.model
    closure: Any = state.loop.closure
    model.weight.data += 1
    closure()
    model.weight.data -= 1


@pytest.mark.parametrize("settings", [{}, {"grad_clip_norm": 0.3}])
def test_gradients_that_an_algorithm_recomputes_are_those_that_are_measured(settings: dict[str, Any]) -> None:
    model = linear()
    model.weight.data += 1
    inputs, targets = batches(8)[0]
    nn.functional.cross_entropy(model(inputs), targets).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    (first, *_), clipped = logged(algorithms=acting(again, "after_train_batch", writes=("model",)), **settings)
    assert first == (0, pytest.approx(norm))
    assert [step for step, _ in clipped] == ([0, 1, 2] if settings else [])


def test_under_fp16_a_norm_that_is_not_finite_is_of_a_step_that_the_scaler_skips() -> None:
    memory, logger = Memory(), Logger()
    logger.destinations.append(memory)
    for precision, norm in (("amp_fp16", float("inf")), ("fp32", float("inf")), ("amp_fp16", 2.0)):
        state = State(precision=precision, gradient_norm=torch.tensor(norm))
        GradientNorm().batch_end(state, logger)
    assert [values["train/gradient_norm"] for _, values in memory.metrics] == [float("inf"), 2.0]


def test_sparse_gradients_count_and_parameters_without_one_do_not() -> None:
    net = nn.ModuleList([nn.Embedding(3, 2, sparse=True), nn.Linear(2, 2)])
    state = State(optimizers=torch.optim.SGD(net.parameters(), lr=0.1))
    net[0](torch.tensor([1, 1])).sum().backward()
    GradientNorm().after_train_batch(state, Logger([Memory()]))
    assert state.gradient_norm is not None
    assert state.gradient_norm.item() == pytest.approx(8**0.5)


def test_two_of_them_log_what_one_does() -> None:
    clipping = {"grad_clip_norm": 0.3}
    assert logged(callbacks=["gradient_norm", GradientNorm()], **clipping) == logged(**clipping)


def test_without_loggers_nothing_is_measured() -> None:
    seen: list[Any] = []
    trainer(callbacks=["gradient_norm", at("batch_end", lambda state: seen.append(state.gradient_norm))]).fit()
    assert seen == [None, None]


def test_where_torch_has_no_total_norm_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logged()
    monkeypatch.delattr(torch.nn.utils, "get_total_norm", raising=False)
    assert [(step, pytest.approx(norm)) for step, norm in logged()[0]] == expected[0]
