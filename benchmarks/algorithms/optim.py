"""optim-plugin, by hand."""
# ruff: noqa: SLF001  torch.optim's multi-tensor kernels have no public name

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from sides import Case, Hand, Loop
from torch.nn import functional as F

from optim_plugin import EMA, SAM, SWA, GradientClipping, GradientPenalty, LayerFreezing, Lookahead, ZClip


def around_steps(
    hand: Hand, before: Callable[[], None] = lambda: None, after: Callable[[int], None] = lambda _: None
) -> Loop:
    """Do something before each step of the optimizer, and after it, given the number of earlier steps."""
    model, optimizer, batches = hand.model, hand.optimizer, hand.batches
    taken = 0

    def run() -> None:
        nonlocal taken
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            with torch.no_grad():
                before()
            optimizer.step()
            after(taken)
            taken += 1

    return run


def averaging(hand: Hand, share: Callable[[int], float]) -> Loop:
    """Move an average of weights and statistics by a share after each step."""
    own = hand.model.state_dict()
    hand.average = {name: tensor.clone() for name, tensor in own.items()}
    floats = [name for name in own if own[name].is_floating_point()]
    counts = [name for name in own if name not in floats]
    own_floats, average_floats = [own[name] for name in floats], [hand.average[name] for name in floats]

    def follow(taken: int) -> None:
        torch._foreach_lerp_(average_floats, own_floats, share(taken))
        for name in counts:
            hand.average[name].copy_(own[name])

    return around_steps(hand, after=follow)


def ema(hand: Hand) -> Loop:
    """Average exponentially, with a warm-up."""
    return averaging(hand, lambda taken: 1 - min(0.999, taken / (9 + taken)))  # it starts after the first step


def swa(hand: Hand) -> Loop:
    """Average the weights of all steps equally."""
    return averaging(hand, lambda taken: 1 / (taken + 1))


def sam(hand: Hand) -> Loop:
    """Step with the gradients up the slope; BatchNorm's statistics are those of the first pass."""
    model, optimizer, batches = hand.model, hand.optimizer, hand.batches
    parameters, buffers = list(model.parameters()), list(model.buffers())

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            with torch.no_grad():
                gradients = [p.grad for p in parameters]
                length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))).item()
                weights, statistics = [p.clone() for p in parameters], [b.clone() for b in buffers]
                torch._foreach_add_(parameters, gradients, alpha=0.05 / length)
            del gradients
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            with torch.no_grad():
                torch._foreach_copy_(parameters, weights)
                torch._foreach_copy_(buffers, statistics)
            optimizer.step()

    return run


def gradient_clipping(hand: Hand) -> Loop:
    """Shorten the gradient of each output to a hundredth of the length of its weights."""

    def length(tensor: torch.Tensor) -> torch.Tensor:
        units = tuple(range(1, tensor.ndim)) or None
        return torch.linalg.vector_norm(tensor, dim=units, keepdim=units is not None)

    parameters = list(hand.model.parameters())

    def clip() -> None:
        for parameter in parameters:
            limit, found = 0.01 * length(parameter).clamp_min(0.001), length(parameter.grad)
            parameter.grad.mul_(torch.where(found > limit, limit / found, 1.0))

    return around_steps(hand, before=clip)


def zclip(hand: Hand) -> Loop:
    """Shorten all gradients where their length is half a deviation above the mean of those so far."""
    first: list[float] = []
    mean = variance = 0.0

    parameters = list(hand.model.parameters())

    def clip() -> None:
        nonlocal mean, variance
        gradients = [parameter.grad for parameter in parameters]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))).item()
        if len(first) < 4:
            first.append(norm)
            mean = sum(first) / len(first)
            variance = sum((each - mean) ** 2 for each in first) / len(first)
            return
        z = (norm - mean) / (variance**0.5 + 1e-6)
        limit = norm if z <= 0.5 else mean + 0.25 / z * variance**0.5
        if limit < norm:
            torch._foreach_mul_(gradients, limit / norm)
        mean = 0.97 * mean + (1 - 0.97) * limit
        variance = 0.97 * variance + (1 - 0.97) * (limit - mean) ** 2

    return around_steps(hand, before=clip)


def lookahead(hand: Hand) -> Loop:
    """Let slow weights follow after every fifth step, and go back to them."""
    weights = [parameter.detach() for parameter in hand.model.parameters()]
    slow = [weight.clone() for weight in weights]

    def follow(taken: int) -> None:
        if taken % 5 == 4:
            torch._foreach_lerp_(slow, weights, 0.8)
            torch._foreach_copy_(weights, slow)

    return around_steps(hand, after=follow)


def layer_freezing(hand: Hand) -> Loop:
    """Freeze layers one after another in the second half."""
    model, optimizer, batches, total = hand.model, hand.optimizer, hand.batches, hand.total
    layers = [m for m in model.modules() if list(m.parameters(recurse=False))]
    step = frozen = 0

    def run() -> None:
        nonlocal step, frozen
        for inputs, targets in batches:
            fraction = max(0.0, (step / total - 0.5) / 0.5)
            due = min(math.floor(round(fraction * len(layers), 9)), len(layers) - 1)
            for layer in layers[frozen:due]:
                for parameter in layer.parameters(recurse=False):
                    parameter.requires_grad, parameter.grad = False, None
            frozen = due
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1

    return run


def gradient_penalty(hand: Hand) -> Loop:
    """Add the squared gradient with respect to the inputs to the loss."""
    model, optimizer, batches = hand.model, hand.optimizer, hand.batches

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            watched = inputs.detach().requires_grad_()
            loss = F.cross_entropy(model(watched), targets)
            (slope,) = torch.autograd.grad(loss, watched, create_graph=True)
            loss = loss + len(inputs) * slope.square().sum()
            loss.backward()
            optimizer.step()

    return run


CASES = {
    "ema": Case(lambda: [EMA(0.999)], ema),
    "sam": Case(lambda: [SAM(0.05)], sam),
    "lookahead": Case(lambda: [Lookahead(5)], lookahead),
    "gradient_clipping": Case(lambda: [GradientClipping()], gradient_clipping),
    "zclip": Case(lambda: [ZClip(0.5, warmup=4)], zclip),
    "layer_freezing": Case(lambda: [LayerFreezing()], layer_freezing),
    "gradient_penalty": Case(lambda: [GradientPenalty(1.0)], gradient_penalty),
    "swa": Case(lambda: [SWA(start=0, update_interval="1ba")], swa),
}
