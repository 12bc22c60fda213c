"""Each algorithm in Lightning, in each setting, does what it does in our Trainer, or is refused before it starts."""

import lightning
import pytest

from engine_core.errors import UnsupportedError

from . import lightning_runs
from .cases import ALONE, CASES, check_page
from .lightning_runs import ITS_WARNINGS, REFUSED, SETTINGS, cell, train

pytestmark = ITS_WARNINGS


def test_the_table_has_the_seventeen():
    assert len(ALONE) == 17


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", CASES)
def test_a_case_is_equal_or_refused_or_differs_for_a_reason(case, setting):
    kind, _, reason = cell(setting, case).partition(": ")
    assert (kind == "refused") == (case in REFUSED[setting])
    assert kind == "equal" or reason


def test_a_refusal_names_the_plugin_the_reason_and_the_remedy():
    with pytest.raises(UnsupportedError) as caught:
        train("label_smoothing", "black box")
    assert str(caught.value) == (
        "LabelSmoothing (labels-plugin 0.1.0) can't work in lightning "
        f"{lightning.__version__}: no before_loss, after_loss: training_step is a black box; name where "
        "training_step calls the loss: EngineCallback(loss_fn='<attribute of the LightningModule>')"
    )


def test_the_page_shows_these_cells():
    check_page("lightning", lightning_runs)
