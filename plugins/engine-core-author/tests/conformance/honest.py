"""Algorithms that keep all rules: the kit must find nothing in them."""

import torch
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import ArgumentError, ArgumentTypeError

from .subjects import AtItsEvents


def fraction(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}={value!r} has to be a number")
    if not 0 <= value < 1:
        raise ArgumentError(f"{name}={value!r} has to be within [0, 1)")
    return float(value)


class SmoothTargets(Algorithm):
    """Makes targets soft for the loss, and puts the hard ones back."""

    metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), writes=("batch",), tags=("compile",))

    def __init__(self, smoothing=0.1, target_key=1):
        self.smoothing = fraction("smoothing", smoothing)
        if not isinstance(target_key, int):
            raise ArgumentTypeError(f"target_key={target_key!r} has to be an index")
        self.target_key = target_key
        self._kept = None

    def match(self, event, state):
        return event is Event.BEFORE_LOSS or (event is Event.AFTER_LOSS and self._kept is not None)

    def validate(self, state):
        if not isinstance(state.batch, (tuple, list)):
            raise ArgumentError(f"smooth_targets finds no target {self.target_key} in a {type(state.batch).__name__}")

    def apply(self, event, state, logger):
        if event is Event.AFTER_LOSS:
            state.batch, self._kept = self._kept, None
            return
        self._kept = state.batch
        targets = state.batch_get_item(self.target_key)
        if not targets.is_floating_point():
            targets = F.one_hot(targets, state.outputs.shape[-1]).float()
        state.batch_set_item(self.target_key, targets * (1 - self.smoothing) + self.smoothing / targets.shape[-1])


class ScaleGradients(AtItsEvents):
    """Scales gradients before the step. No arguments."""

    metadata = AlgorithmMetadata(name="scale_gradients", events=("after_train_batch",), writes=("model",))

    def apply(self, event, state, logger):
        for weight in state.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(0.5)


class NoisyLoss(AtItsEvents):
    """Multiplies the loss by noise from a generator of its own."""

    metadata = AlgorithmMetadata(events=("init", "after_loss"), writes=("loss",), tags=("compile",))

    def __init__(self, std=0.1, *, verbose=False):
        self.std = fraction("std", std)
        if not isinstance(verbose, bool):
            raise ArgumentTypeError(f"verbose={verbose!r} has to be True or False")
        self.verbose = verbose

    def apply(self, event, state, logger):
        if event is Event.INIT:
            self.generator = torch.Generator().manual_seed(state.derive_seed("noisy_loss", shared=True))
            return
        state.loss = state.loss * (1 + self.std * torch.randn((), generator=self.generator))

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class CountEvents(Algorithm):
    """Runs at every event and changes nothing of State."""

    metadata = AlgorithmMetadata(events=None, writes=())

    def __init__(self):
        self.counts = {}

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        if event is Event.INIT:
            self.counts = {}
        self.counts[event.value] = self.counts.get(event.value, 0) + 1

    def state_dict(self):
        kept = {event: n for event, n in self.counts.items() if event in ("batch_end", "after_loss")}
        return {"counts": kept}

    def load_state_dict(self, state):
        self.counts = dict(state["counts"])


class SoftRectifiers(AtItsEvents):
    """Surgery: puts a module with a parameter in the place of each ReLU."""

    metadata = AlgorithmMetadata(events=("init",), writes=("model",), tags=("surgery",), needs=("surgery",))

    def apply(self, event, state, logger):
        for module in list(state.model.modules()):
            for name, child in module.named_children():
                if type(child) is torch.nn.ReLU:
                    setattr(module, name, torch.nn.PReLU())

    @staticmethod
    def required_on_load():
        return True


HONEST = [SoftRectifiers, SmoothTargets, ScaleGradients, NoisyLoss, CountEvents]
