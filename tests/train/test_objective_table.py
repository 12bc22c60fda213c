"""What torch's losses count: for each row of the closed table, parts add up to the whole, wherever a loss is cut."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from engine_core import Loss, Objective
from engine_core.losses import with_reduction
from engine_core.objective.loss import _ALL
from engine_core_author import ThreadRanks

from .parts import Memory, trainer

ELEMENTS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
SIGNS = (nn.SoftMarginLoss, nn.HingeEmbeddingLoss)
LIKELIHOODS = (nn.BCELoss, nn.BCEWithLogitsLoss, nn.PoissonNLLLoss, nn.GaussianNLLLoss)
PAIRS = (nn.MarginRankingLoss, nn.CosineEmbeddingLoss, nn.TripletMarginLoss, nn.TripletMarginWithDistanceLoss)
pytestmark = pytest.mark.filterwarnings(
    "ignore:Using a target size:UserWarning",
    "ignore:size_average and reduce args:UserWarning",
    "ignore:reduction. 'mean' divides:UserWarning",
)


@dataclass
class Case:
    """A loss, and a batch for it; `loss_of` returns the loss function for some of its rows."""

    inputs: torch.Tensor
    targets: torch.Tensor
    loss_of: Callable[[slice], Any]
    link: Callable[[torch.Tensor], torch.Tensor] = torch.clone

    @property
    def loss_fn(self):
        return self.loss_of(slice(None))

    def model(self):
        return Net(self.inputs[0], self.link)


class Net(nn.Module):
    """Scales each element of a row, and maps it to what the loss takes."""

    def __init__(self, row, link):
        super().__init__()
        self.scale, self.link = nn.Parameter(torch.ones_like(row)), link

    def forward(self, inputs):
        return self.link(inputs * self.scale)


class Focal(nn.CrossEntropyLoss):
    """Looks like torch's, with class weights and an ignored class, but is a mean over the rows."""

    def forward(self, outputs, targets):
        losses = F.cross_entropy(outputs, targets, self.weight, ignore_index=self.ignore_index, reduction="none")
        return ((1 - (-losses).exp()) ** 2 * losses).mean()


def patched(**given):
    loss = nn.CrossEntropyLoss(**given)
    loss.forward = Focal(**given).forward
    return loss


def mean_of_tokens(reduction, **given):
    """Return a loss that says itself what it counts."""

    def loss(outputs, targets):
        total = F.cross_entropy(outputs, targets, reduction="sum", ignore_index=given["ignore_index"])
        return Loss(total, None if reduction == "sum" else (targets != given["ignore_index"]).sum())

    return loss


OWN = {"Loss": mean_of_tokens, "focal": Focal, "patched": patched}
KINDS = [*_ALL, *OWN]


@st.composite
def cases(draw, kinds):  # noqa: C901, PLR0911, PLR0912  a branch for each kind of loss
    """Return a case of a kind: a class of torch's, or a name in `OWN`."""
    kind, n, extra = draw(st.sampled_from(kinds)), draw(st.integers(1, 9)), draw(st.sampled_from([(), (2,), (2, 3)]))
    torch.manual_seed(draw(st.integers(0, 99)))
    reductions = ["mean", "sum"] if isinstance(kind, type) or kind == "Loss" else ["mean"]
    given = {"reduction": draw(st.sampled_from(reductions))}
    x, weight = torch.randn(n, 3, *extra), draw(st.sampled_from([None, (0.2, 1.0, 5.0), (0.0, 1.0, 0.0)]))

    def made(**more):
        """Return the loss as an object of its class, or its function with the settings."""
        if kind in OWN:
            return OWN[kind](**given)
        loss = kind(**given) if draw(st.booleans()) else partial(_ALL[kind], **given)
        return partial(loss, **more) if more else loss

    def case(targets, *link, inputs=x, **more):
        loss = made(**more)
        return Case(inputs, targets, lambda _: loss, *link)

    if kind in (nn.CrossEntropyLoss, nn.NLLLoss, *OWN):
        given |= {"weight": None if weight is None else torch.tensor(weight)}
        if kind == nn.CrossEntropyLoss:
            given["label_smoothing"] = draw(st.sampled_from([0.0, 0.1]))
            if draw(st.booleans()):
                return case(torch.rand_like(x))
        if given["reduction"] == "sum" and isinstance(kind, type) and draw(st.booleans()):
            given |= {"size_average": False, "reduction": "mean"}  # its older name, which wins
        given["ignore_index"] = ignored = draw(st.sampled_from([-100, 0, 1]))
        targets = torch.randint(3, (n, *extra))
        targets[torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n)))] = ignored
        if ignored >= 0 and not extra and not given.get("label_smoothing") and draw(st.booleans()):
            targets = targets.to(torch.uint8)
        return case(targets, partial(F.log_softmax, dim=1) if kind == nn.NLLLoss else torch.clone)
    if kind in ELEMENTS:
        broadcast = draw(st.sampled_from([(3,), (1,)])) + tuple(draw(st.sampled_from([d, 1])) for d in extra)
        return case(torch.randn(n, *broadcast))
    if kind in SIGNS:
        return case(torch.randn_like(x).sign())
    if kind == nn.GaussianNLLLoss:
        return Case(x, torch.randn_like(x), lambda rows: made(var=torch.full_like(x[rows], 0.5)))
    if kind in LIKELIHOODS:
        if kind == nn.BCEWithLogitsLoss:
            given["pos_weight"] = torch.rand(x.shape[1:])
        return case(torch.rand_like(x), torch.sigmoid if kind == nn.BCELoss else torch.clone)
    if kind == nn.KLDivLoss:
        given["reduction"] = draw(st.sampled_from(["mean", "sum", "batchmean"]))
        return case(torch.randn_like(x).softmax(1), partial(F.log_softmax, dim=1))
    if kind == nn.CTCLoss:
        steps, labels = torch.randint(5, 7, (n,)), torch.randint(1, 4, (n,))
        lengths = lambda rows: made(input_lengths=steps[rows], target_lengths=labels[rows])  # noqa: E731
        targets, time_first = torch.randint(1, 3, (n, 3)), lambda inputs: inputs.log_softmax(-1).transpose(0, 1)
        return Case(torch.randn(n, 6, 3), targets, lengths, time_first)
    flat = torch.randn(n, 3)
    if kind in PAIRS:
        third = {nn.MarginRankingLoss: torch.ones(1, 1), nn.CosineEmbeddingLoss: -torch.ones(1)}
        more = {"target": third[kind]} if kind in third else {"negative": torch.randn(1, 3)}
        return case(torch.randn(n, 3), inputs=flat, **more)
    if kind == nn.MultiMarginLoss:
        return case(torch.randint(3, (n,)), inputs=flat)
    if kind == nn.MultiLabelMarginLoss:
        return case(torch.stack([torch.tensor([*torch.randperm(3)[:2], -1]) for _ in range(n)]), inputs=flat)
    assert kind == nn.MultiLabelSoftMarginLoss
    return case(torch.randint(2, (n, 3)).float(), inputs=flat)


def ends(draw, rows):
    """Return where parts of any sizes are cut."""
    cuts = sorted({0, rows, *draw.draw(st.lists(st.integers(0, rows), max_size=4))})
    return [slice(*pair) for pair in pairwise(cuts)]


def by_hand(case, *, alone=True):
    """Return torch's loss of a whole batch, and the weights after a step of SGD.

    If nothing counts the loss is NaN, and a step in parts none; alone it is torch's, whose gradient may be NaN too.
    """
    model = case.model()
    given = case.loss_fn(model(case.inputs), case.targets)
    loss = given.mean if isinstance(given, Loss) else given
    loss.backward()
    if loss.isfinite() or alone:
        model.scale.data -= 0.1 * model.scale.grad
    return loss.item() if loss.isfinite() else math.nan, model.scale.detach()  # inf where smoothing is all there is


def trained(case, size, sets, ranks=None):
    """Return weights after a step, its loss, and the loss of an evaluation before."""
    settings = {"loss_fn": case.loss_fn, "microbatch_size": size, "parallel": ranks, "loggers": (memory := Memory())}
    with trainer([(case.inputs, case.targets)], case.model(), **settings) as made:
        before = made.eval(sets)
        made.fit()
    ((_, loss),) = memory.values("train/loss") or [(0, made.state.loss.item())]
    return made.state.model.scale.detach(), loss, before["eval/loss"]


def close(one, other, within=1e-6):
    one, other = (torch.as_tensor(value, dtype=torch.float64) for value in (one, other))
    return torch.allclose(one, other, rtol=within, atol=within, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
@given(draw=st.data())
@settings(max_examples=15)
def test_parts_add_up_to_the_whole_in_sum_and_count_and_its_mean_is_what_torch_gives(kind, draw):
    case = draw.draw(cases([kind]))

    def loss_of(rows):
        part = case.inputs[rows], case.targets[rows]
        return Objective(case.loss_of(rows)).loss(None, case.link(part[0]), part)

    whole, joined = loss_of(slice(None)), Loss.merged(map(loss_of, ends(draw, len(case.inputs))))
    assert (whole.count is None) == (joined.count is None)
    assert whole.count is None or close(whole.count, joined.count)
    assert close(whole.sum, joined.sum, 2e-6)
    if whole.count is not None and kind not in (nn.CTCLoss, nn.MarginRankingLoss, *OWN):
        summed = with_reduction(case.loss_fn, "sum")
        assert close(whole.sum, summed(case.link(case.inputs), case.targets), 2e-6)
    assert close(whole.mean if whole.mean.isfinite() else math.nan, by_hand(case)[0])


OF_ANY_ROWS = [kind for kind in KINDS if kind not in (nn.CTCLoss, nn.GaussianNLLLoss)]  # those are told of each row


@given(cases(OF_ANY_ROWS), st.sampled_from([None, 1, 2, 3, 100]), st.sampled_from([1, 2, 4]), st.data())
@settings(max_examples=40)
def test_a_step_and_an_evaluation_are_those_of_the_whole_however_it_is_cut(case, microbatch_size, world_size, draw):
    """Into microbatches, uneven batches and ranks, of which some may be without rows."""
    sets = [(case.inputs[rows], case.targets[rows]) for rows in ends(draw, len(case.inputs))]
    alone = world_size == 1 and (microbatch_size is None or microbatch_size >= len(case.inputs))
    loss, weights = by_hand(case, alone=alone)
    train = partial(trained, case, microbatch_size, sets)
    found = [train()] if world_size == 1 else ThreadRanks.run(train, world_size)
    for of_weights, of_step, of_set in found:
        assert close(of_weights, weights, 2e-6)
        assert close(of_step if math.isfinite(of_step) else math.nan, loss, 2e-6)
        assert close(of_set, loss, 2e-6)
