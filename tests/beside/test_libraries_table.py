"""Each of the 36 algorithms in each library's loop does what it does in our Trainer, or is refused with the reason."""

import re

import pytest

from engine_core.registry import Registry
from engine_core_transformers.offers import TRANSFORMERS_OFFERS

from . import accelerate_runs, lightning_runs, transformers_runs
from .cases import ALONE, CASES, check_page, differences, ours, train_ours, weights_of_words

pytestmark = [
    *lightning_runs.ITS_WARNINGS,
    pytest.mark.filterwarnings("ignore:compile. batch .* compiled again:UserWarning"),  # the last has fewer rows
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # torch's own, in its compiler
]
RUNS = {"accelerate": accelerate_runs, "lightning": lightning_runs, "transformers": transformers_runs}
REFUSED = {
    "step": ("curriculum", "info_batch", "layer_stacking", "whitened_stem"),
    "black box": (
        "carried",
        "curriculum",
        "cutmix",
        "gradient_penalty",
        "info_batch",
        "label_smoothing",
        "layer_stacking",
        "mixup",
        "selective_backprop",
        "test_time_augmentation",
        "together",
        "whitened_stem",
    ),
    "accumulation": (
        "carried",
        "curriculum",
        "gradient_penalty",
        "info_batch",
        "layer_stacking",
        "sam",
        "whitened_stem",
    ),
}
"""By setting, the cases that each adapter has to refuse."""
REFUSED_ALWAYS = {("accelerate", "test_time_augmentation")}  # in that loop the user evaluates


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("library", "setting"), [(library, setting) for library, runs in RUNS.items() for setting in runs.SETTINGS]
)
def test_a_case_is_equal_to_ours_or_refused_or_differs_by_a_written_reason(library, setting, case):
    found, differs = RUNS[library].cell(setting, case), RUNS[library].DIFFERS
    if case in REFUSED[setting] or (library, case) in REFUSED_ALWAYS:
        assert found.startswith("refused: ") and f" can't work in {library} " in found and "; " in found, found
    else:
        assert found == (f"differs: {differs[setting, case]}" if (setting, case) in differs else "equal")


def test_the_cases_are_all_and_what_is_compared_changes_with_them():
    assert len(ALONE) == 36
    plain = ours("none")
    same = ["activation_checkpointing", "compile", "fused_layernorm"]  # the same sums, computed otherwise
    assert [case for case in ALONE if not differences(ours(case), plain)] == same
    assert differences(train_ours("none"), plain) == []


@pytest.mark.parametrize(
    ("library", "setting", "case", "says"),
    [
        ("accelerate", "accumulation", "sam", "no closure: gradient_accumulation_steps .*; set it to 1"),
        ("lightning", "black box", "label_smoothing", "no before_loss, after_loss: training_step is .*; name where"),
    ],
)
def test_a_refusal_names_the_plugin_the_reason_and_the_remedy(library, setting, case, says):
    plugin = {"sam": "SAM (optim-plugin 0.1.0)", "label_smoothing": "LabelSmoothing (labels-plugin 0.1.0)"}[case]
    start, _, reason = RUNS[library].cell(setting, case).partition(": ")[2].partition(": ")
    assert start.startswith(f"{plugin} can't work in {library} ")
    assert re.match(says, reason)


@pytest.mark.parametrize("steps", [1, 2, 4])  # 6 batches: the last of two steps of 4 has half
@pytest.mark.parametrize("library", ["accelerate", "transformers"])
def test_places_count_alike_in_batches_of_which_few_count(library, steps, tmp_path):
    weights, clock, losses = weights_of_words(4 * steps)
    given = [tmp_path] if library == "transformers" else []
    theirs, their_clock, *logged = RUNS[library].train_words(*given, steps)
    assert theirs == pytest.approx(weights, rel=1e-5, abs=1e-7)
    assert their_clock == clock
    assert logged == [pytest.approx(sum(losses) / len(losses), rel=1e-3)] * len(given)


def test_the_offers_of_transformers_are_installed_as_data():
    assert Registry.scan().load("loops", "transformers") is TRANSFORMERS_OFFERS


@pytest.mark.parametrize("library", RUNS)
def test_the_page_shows_these_cells(library):
    check_page(library, RUNS[library])
