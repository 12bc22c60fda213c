"""A fit that continues in an epoch that an exception cut begins the pair of the epoch again."""

import pytest
import torch

from .parts import acting, batches, trainer


def test_a_fit_that_continues_in_an_epoch_that_an_exception_cut_begins_its_pair_again():
    heard, calls = [], iter(range(9))

    def interrupted_once(outputs, targets):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return torch.nn.functional.cross_entropy(outputs, targets)

    tell = acting(lambda event, state: heard.append((str(event), state.timestamp.batch)), "epoch_start", "epoch_end")
    with trainer(batches(4, 4, 4, 4), algorithms=tell, loss_fn=interrupted_once) as made:
        with pytest.raises(KeyboardInterrupt):
            made.fit()
        made.fit()
    assert heard == [("epoch_start", 0), ("epoch_end", 1), ("epoch_start", 1), ("epoch_end", 3)]
