"""Does an algorithm work if the model runs in mixed precision, or compiled?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine_core.algorithm import algorithm_metadata

from ..kit import AlgorithmKit, Fault
from ..runs import Outcome, attempt, described, outcome_of, train, trained


def test_autocast(kit: AlgorithmKit) -> Fault | None:
    """Train under bf16 autocast."""
    if attempt(kit, [], precision="amp_bf16", max_duration="1ba").error is not None:
        pytest.skip("the model or the loss does not work under bf16 autocast, without the algorithm too")
    run = attempt(kit, [kit.make_algorithm()], precision="amp_bf16")
    if run.outcome is None:
        return Fault(f"under bf16 autocast {described(run.error)}", run.error)
    if not run.outcome.is_finite():
        return Fault("under bf16 autocast the weights become NaN or infinite")
    plain = train(kit, [kit.make_algorithm()]).weights
    dtypes = {name: getattr(w, "dtype", None) for name, w in run.outcome.weights.items()}
    other = [name for name in dtypes if name in plain and dtypes[name] != getattr(plain[name], "dtype", None)]
    return Fault(f"under bf16 autocast {other[0]} became {dtypes[other[0]]}") if other else None


def test_compile(kit: AlgorithmKit) -> Fault | None:
    """Train a compiled model, and compare with the plain one."""
    if "compile" not in algorithm_metadata(kit.make_algorithm()).tags:
        pytest.skip("its metadata has no tag `compile`, so it does not claim to survive torch.compile")
    graphs: list[Any] = []
    plain = _compiled(kit, [], graphs)
    if isinstance(plain, Exception):
        pytest.skip(f"torch.compile does not work here, without the algorithm too: {described(plain)}")
    needed = len(graphs)
    run = _compiled(kit, [kit.make_algorithm()], graphs)
    if isinstance(run, Exception):
        return Fault(f"with a compiled model {described(run)}", run)
    made = len(graphs) - needed
    if not made:
        return Fault("with it no part of the model was compiled")
    if made > 2 * needed + 2:
        return Fault(f"with it the model was compiled {made} times in 8 steps, without it {needed} times")
    if different := close(run, _named_as(run, train(kit, [kit.make_algorithm()]))):
        return Fault(f"the compiled model ends with different weights than the plain one: {different}")
    return None


def _compiled(kit: AlgorithmKit, algorithms: list[Any], graphs: list[Any]) -> Outcome | Exception:
    """Train a compiled model, and return what came out or was raised; each graph is kept, and runs as it is."""

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    try:
        model = torch.compile(kit.make_model(), backend=backend)
        return outcome_of(trained(kit, algorithms, model=model))
    except Exception as error:  # noqa: BLE001  what it is goes into the message
        return error
    finally:
        torch.compiler.reset()


def _named_as(compiled: Outcome, plain: Outcome) -> Outcome:
    """Return the weights of the plain run under the names that they have in a compiled model."""
    names = {name.replace("_orig_mod.", ""): name for name in compiled.weights}
    return replace(plain, weights={names.get(name, name): w for name, w in plain.weights.items()})


def close(one: Outcome, other: Outcome) -> str | None:
    """Say where weights or metrics differ by more than rounding, or None."""
    if set(one.weights) != set(other.weights):
        return f"only one of the two has {', '.join(sorted(set(one.weights) ^ set(other.weights))[:3])}"
    for name, weight in ((name, w) for name, w in one.weights.items() if torch.is_tensor(w)):
        if weight.shape != other.weights[name].shape:
            return f"{name} has the shapes {tuple(weight.shape)} and {tuple(other.weights[name].shape)}"
        if not torch.allclose(weight, other.weights[name], rtol=1e-4, atol=1e-6, equal_nan=True):
            return f"{name} differs by up to {(weight - other.weights[name]).abs().max().item():.2g}"
    for name, metric in one.metrics.items():
        if abs(metric - other.metrics.get(name, metric)) > 1e-6 + 1e-4 * abs(metric):
            return f"{name} is {metric:.6g} and {other.metrics[name]:.6g}"
    return None
