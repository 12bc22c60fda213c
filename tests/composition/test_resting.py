"""An algorithm whose arguments leave it nothing to do trains as if it were not there, and is not called idle."""

import pytest
import torch

from engine_core.registry import Registry

from .conftest import trainer_of, weights


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("label_smoothing", {"smoothing": 0}),
        ("random_shift", {"max_shift": 0}),
        ("rand_augment", {"magnitude": 0}),
        ("col_out", {"p_row": 0, "p_col": 0}),
        ("progressive_resizing", {"initial_scale": 1.0}),
        ("progressive_resizing", {"finetune_fraction": 1.0, "delay_fraction": 0.0}),
        ("gradient_penalty", {"weight": 0}),
        ("sam", {"interval": 100}),
    ],
)
def test_one_that_rests_by_its_arguments_is_not_called_idle(name, arguments):
    resting = Registry.scan().load("algorithms", name)(**arguments)
    with trainer_of([resting]) as trainer, trainer_of([]) as bare:
        trainer.fit()  # warnings are errors
        bare.fit()
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer).values(), weights(bare).values(), strict=True))
