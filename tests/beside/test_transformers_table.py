"""Each algorithm does in Hugging Face's Trainer what it does in ours, or is refused with the reason."""

import pytest

from engine_core.registry import Registry
from engine_core_transformers.offers import TRANSFORMERS_OFFERS

from . import transformers_runs
from .cases import ALONE, check_page, differences, ours, train_ours
from .transformers_runs import ACCUMULATION, BLACK_BOX, CASES_OF_THE_TABLE, DIFFERS, SETTINGS, STEP, cell

REFUSED = {
    STEP: [],
    BLACK_BOX: [
        *("cutmix", "gradient_penalty", "label_smoothing", "mixup", "selective_backprop", "carried", "together")
    ],
    ACCUMULATION: ["gradient_penalty", "sam", "carried"],
}


@pytest.mark.parametrize("case", CASES_OF_THE_TABLE)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_case_is_equal_to_ours_or_refused_or_differs_by_a_written_reason(setting, case):
    found = cell(setting, case)

    if case in REFUSED[setting]:
        assert found.startswith("refused: ") and "transformers 5" in found and "; " in found
    else:
        assert found == (f"differs: {DIFFERS[setting, case]}" if (setting, case) in DIFFERS else "equal")


def test_the_cases_are_the_17_and_what_is_compared_changes_with_them():
    plain = ours("none")

    unchanged = [case for case in ALONE if not differences(ours(case), plain)]

    assert len(ALONE) == 17
    assert unchanged == ["fused_layernorm"]  # the same sum, computed otherwise
    assert differences(train_ours("none"), plain) == []


def test_the_offers_are_installed_as_data():
    assert Registry.scan().load("loops", "transformers") is TRANSFORMERS_OFFERS


def test_the_page_shows_these_cells():
    check_page("transformers", transformers_runs)
