"""A run on several processes is the run on one: the same weights to rounding, the same logs, the same rows kept."""

import functools
import sys
from pathlib import Path

import pytest
import torch

from engine_core.ranks import Ranks

sys.path.insert(0, str(Path(__file__).parent))  # docs/equality.py runs this file outside of its package
import equality
from starting import written_by

SIZES = (2, 4)
OF_WEIGHTS, OF_LOGS = 2e-6, 1e-5
OF_A_ROW = [
    *("blurpool", "squeeze_excite", "fused_layernorm", "gated_linear_units", "ngram_embedding", "token_shift"),
    *("logit_soft_cap", "activation_checkpointing", "alternating_flip", "col_out", "test_time_augmentation"),
]
"""What changes layers or rows and adds nothing up, for which one size is enough."""
ON_TWO = ("pair/", *(f"alone/{name}" for name in OF_A_ROW))
CASES = [(size, name) for size in SIZES for name in equality.NAMES if size == 2 or not name.startswith(ON_TWO)]
pytestmark = [pytest.mark.ranks, pytest.mark.full]


def together(size):
    """Return what each case gave on so many processes, all from one start."""
    names = [name for on, name in CASES if on == size]
    return written_by(equality.__file__, size, *names, "sb/rank")


@functools.cache
def alone(name, microbatch_size):
    """Return what a case gives in one process."""
    return equality.run(name, **({"microbatch_size": microbatch_size} if microbatch_size else {}))


def pair_of(size, name):
    """Return what a case gives on so many processes and on one.

    What draws once a batch and mixes its rows sees the rows of a rank, as it sees those of a microbatch.
    """
    return together(size)[name], alone(name, 8 // size if name.startswith("mixed/") else None)


def differences(size, name):
    """Return the largest difference of a weight, and of a number that is logged."""
    many, one = pair_of(size, name)
    assert [(step, [*metrics]) for step, metrics in many["logs"]] == [(s, [*m]) for s, m in one["logs"]]
    of_weights = max(
        (torch.tensor(value) - torch.tensor(many["weights"][key])).abs().max().item()
        for key, value in one["weights"].items()
    )
    logs = zip(many["logs"], one["logs"], strict=True)
    return of_weights, max(abs(value - m[key]) for (_, m), (_, o) in logs for key, value in o.items())


@pytest.mark.parametrize(("size", "name"), CASES)
def test_weights_and_logs_are_those_of_one_process_on_every_rank(size, name):
    of_weights, of_logs = differences(size, name)
    assert of_weights <= OF_WEIGHTS
    assert of_logs <= OF_LOGS
    assert together(size)[name]["alike"]


@pytest.mark.parametrize(("size", "name"), [(on, name) for on, name in CASES if name.startswith("sb/")])
def test_what_is_known_about_the_examples_is_that_of_one_process(size, name):
    many, one = (dict(result["state"]) for result in pair_of(size, name))
    for column in ("table", "visits"):
        expected, found = (torch.tensor(state.pop(column, [])) for state in (one, many))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    for own in ("proxy", "proxy_optimizer"):  # trained, so it differs by rounding
        expected, found = (leaves(state.pop(own, None)) for state in (one, many))
        assert found == [pytest.approx(leaf, rel=1e-4, abs=1e-6) if type(leaf) is float else leaf for leaf in expected]
    assert many == one


def leaves(tree):
    """Return the values of a tree of dicts and lists, in one list."""
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else None
    return [tree] if inner is None else [leaf for each in inner for leaf in leaves(each)]


@pytest.mark.parametrize("size", SIZES)
def test_kept_rows_are_dealt_so_that_ranks_train_on_numbers_that_differ_by_at_most_one(size):
    for name in ("sb/composer", "sb/cdf", "sb/carried", "sb/few"):
        dealt = together(size)[name]["rows"]
        assert all(max(numbers) - min(numbers) <= 1 for numbers in dealt)
        assert [sum(numbers) for numbers in dealt] == [n for (n,) in alone(name, None)["rows"]]


@pytest.mark.parametrize("size", SIZES)
def test_with_scope_rank_each_keeps_its_share_of_its_own_rows(size):
    loaded = together(size)["loop/plain"]["rows"]
    assert together(size)["sb/rank"]["rows"] == [[max(1, n // 2) if n else 0 for n in batch] for batch in loaded]


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_batches_of_any_kind_change_ranks_or_stay_with_one_warning(size):
    assert together(size)["moves"] == []


@pytest.mark.parametrize("size", SIZES)
def test_draws_for_each_row_differ_between_ranks_and_have_the_law_of_one_process(size):
    many, one = together(size)["draws"], equality.draws(Ranks())
    assert many["rows"] == one["rows"]
    assert many["apart"] == [size] * 3
    assert one["means"] == pytest.approx(many["means"], abs=0.1)


def test_the_published_table_has_each_case_and_keeps_the_bounds():
    """`python docs/equality.py` writes it."""
    table = (Path(__file__).parents[2] / "docs" / "reference" / "equality.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) == len(equality.NAMES)
    assert all(float(cell) <= OF_WEIGHTS for row in rows for cell in (row[1], row[3]) if cell != "-")
    assert all(float(cell) <= OF_LOGS for row in rows for cell in (row[2], row[4]) if cell != "-")
