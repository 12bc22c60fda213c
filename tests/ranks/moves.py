"""Rows of batches of many kinds that change ranks, compared with what one process takes of them."""

import warnings

import torch

from engine_core import Batches
from engine_core.batch import map_batch
from engine_core.errors import EngineError
from engine_core.ranks import share

N = 9
IMAGES = torch.arange(N * 18.0).view(N, 2, 3, 3).contiguous(memory_format=torch.channels_last)
MIXED = (
    IMAGES,
    {"even": torch.arange(N) % 2 == 0, "words": list("abcdefghi"), "one": 3, "empty": torch.zeros(N, 0)},
    {"half": torch.arange(N).half(), "complex": torch.arange(N) * 1j, "kept": torch.ones(20)},
)
RULE = Batches(shared=("2.kept",))
SAMPLES = [{"x": torch.full((2,), float(i)), "id": i} for i in range(N)]
RAGGED = torch.arange(2 * N).view(2, N), [torch.full((i,), float(i)) for i in range(N)]


def wrong_moves(ranks):
    """Return the cases that went wrong on some rank."""
    last = [0] * (ranks.size - 1)
    wrong = [
        *_judged(ranks, "in another order", MIXED, [8, 1, 2, 0, 5]),
        *_judged(ranks, "fewer than ranks", MIXED, [4]),
        *_judged(ranks, "all on the last", MIXED, [0, 5, 7, 8], [*last, N]),
        *_judged(ranks, "samples", SAMPLES, [0, 1, 2], rule=Batches(samples=True)),
        *_judged(ranks, "any size, time first", RAGGED, [8, 1, 2], rule=Batches(per_row=(1,), dim={0: 1})),
        *_judged(ranks, "told to stay", MIXED, [0, 1, 2], stays=True),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):  # lengths differ between ranks
            wrong += _judged(ranks, "must stay", MIXED, [0, 1, 2], stays=True, grows=True)
    wrong += _gathered_wrongly(ranks)
    told = [sum("can't be sent" in str(warning.message) for warning in caught)]
    if ranks.each(told) != [[1], *[[0]] * (ranks.size - 1)]:
        wrong.append("must stay: it is said once, by rank 0")
    return wrong


def _gathered_wrongly(ranks):
    """Return what went wrong when ranks gather rows of different dtypes and shapes, few and many."""
    wrong = []
    dtype = torch.float64 if ranks.rank else torch.float32
    for rows in (3, 3000):
        for own in (torch.ones(rows, dtype=dtype), torch.ones(rows, 1 + ranks.rank)):
            try:
                ranks.gather(own)
            except EngineError as error:
                if "differ in more than their number" not in str(error):
                    wrong.append(str(error))
            else:
                wrong.append(f"{rows} rows that differ were gathered")
    return wrong if ranks.sum(1) == ranks.size else [*wrong, "the next message is another one"]


def _judged(ranks, name, whole, index, counts=(), *, stays=False, grows=False, rule=RULE):
    """Return the ranks on which the rows at `index` are not what they should be.

    Args:
        counts: how many rows each rank has; as they are dealt, if left out.
        stays: do rows stay where they are, because they are told to, or because they can't be put together?
        grows: does the length of rows differ between ranks?
    """
    counts = counts or [stop - start for start, stop in (share(N, rank, ranks.size) for rank in range(ranks.size))]
    first, own = sum(counts[: ranks.rank]), counts[ranks.rank]
    if grows:
        whole = (*whole, torch.ones(N, ranks.rank + 1))
    ranks.batches = rule
    batch = rule.part(whole, slice(first, first + own) if own else slice(1))
    found, deal = ranks.parts(batch, own, moves=grows or not stays)
    got, is_placeholder = deal(torch.tensor(index))
    start, stop = share(len(index), ranks.rank, ranks.size)
    mine = [row for row in index if first <= row < first + own] if stays else index[start:stop]
    expected = rule.part(whole, torch.tensor(mine)) if mine else rule.part(batch, slice(1))
    are_equal = _described(got) == _described(expected) and is_placeholder is not bool(mine) and found == [*counts]
    return [f"{name} on rank {rank}" for rank, (is_right,) in enumerate(ranks.table([are_equal])) if not is_right]


def _described(batch):
    def described(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        strides = [stride for stride, size in zip(leaf.stride(), leaf.shape, strict=True) if size > 1]
        return leaf.dtype, strides, leaf.tolist()

    return repr(map_batch(batch, described))
