"""Each two of the algorithms train together, in both orders of the list with one result, or are refused."""

import itertools
import runpy
from contextlib import nullcontext

import pytest
import torch

from engine_core import Engine, Logger, State
from engine_core.errors import EngineError
from engine_core.registry import Registry
from engine_core_author import RecordingDestination

from .conftest import BATCHES, DOCS, EPOCHS, NAMES, VARIANTS, make, trainer_of, weights

EXCLUDED = ("cutmix", "mixup", "selective_backprop")
"""What InfoBatch can't run together with."""
REFUSED = {
    ("info_batch", "curriculum"),
    ("ema", "swa"),
    ("ema", "lawa"),
    ("lawa", "layer_stacking"),
    ("lawa", "swa"),
    *((other, "info_batch") for other in EXCLUDED[:2]),
    ("info_batch", EXCLUDED[2]),
}
REFUSED_TWICE = {"cutmix", "ema", "info_batch", "label_smoothing", "layer_freezing", "mixup", "sam", "swa"}
REFUSED_TWICE |= {"alternating_flip", "curriculum", "sequence_warmup", "lawa", "lookahead", "zclip"}
FEWER = {"info_batch": len(BATCHES[:-1]) // 2, "curriculum": len(BATCHES[:-1]) - 1}
"""How many steps these leave out at most."""
REFUSED_VARIANTS = {(variant, "info_batch") for variant, (own, _) in VARIANTS.items() if own in EXCLUDED}
PAIRS = list(itertools.combinations(NAMES, 2))
PAIRS += [(variant, name) for variant, (own, _) in VARIANTS.items() for name in NAMES if name != own]
PAIRS += [("mixup of losses", "progressive_resizing by crops"), ("cutmix of losses", "progressive_resizing by crops")]
TRIPLES = [
    ("mixup of losses", "cutmix", "label_smoothing"),
    ("mixup", "cutmix of losses", "sam"),
    ("cutout", "selective_backprop", "progressive_resizing by crops"),
    ("gradient_penalty", "mixup", "sam"),
    ("layer_freezing", "ema", "stochastic_depth"),
    ("blurpool", "channels_last", "squeeze_excite"),
]


IN_THE_QUICK_RING = [("cutmix", "selective_backprop"), ("ema", "sam"), ("blurpool", "label_smoothing")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(*pair, marks=() if pair in IN_THE_QUICK_RING else pytest.mark.full)
        for pair in PAIRS
        if not {pair, pair[::-1]} & (REFUSED | REFUSED_VARIANTS)
    ],
)
def test_a_pair_trains_to_the_same_end_in_both_orders_of_the_list(one, other):
    ends, metrics = [], []
    for names in ((one, other), (other, one)):
        with trainer_of([make(name) for name in names]) as trainer:
            trainer.fit()
        steps = EPOCHS * len(BATCHES[:-1])
        fewer = sum(FEWER.get(name, 0) for name in names)
        assert steps - fewer <= trainer.state.timestamp.batch <= steps
        assert trainer.state.loss.isfinite()
        ends.append(weights(trainer))
        metrics.append(trainer.state.metrics)
    assert_same(ends)
    assert metrics[0] == metrics[1]


def assert_same(ends):
    first, *others = ends
    for other in others:
        assert first.keys() == other.keys()
        assert [name for name in first if not torch.equal(first[name], other[name])] == []


@pytest.mark.full
@pytest.mark.parametrize("three", TRIPLES, ids=", ".join)
def test_three_train_to_the_same_end_in_all_orders_of_the_list(three):
    ends = []
    for names in itertools.permutations(three):
        with trainer_of([make(name) for name in names], callbacks=["audit"]) as trainer:  # its warnings are errors here
            trainer.fit()
        ends.append(weights(trainer))
    assert_same(ends)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.parametrize("other", [name for name in (*NAMES, *VARIANTS) if name != "sam"])
def test_with_microbatches_a_second_pass_is_the_same_in_both_orders_of_the_list(other):
    ends = []
    for names in (("sam", other), (other, "sam")):
        with trainer_of([make(name) for name in names], microbatch_size=10) as trainer:
            trainer.fit()
        ends.append(weights(trainer))
    assert_same(ends)


@pytest.mark.parametrize(("one", "other"), sorted(REFUSED | REFUSED_VARIANTS))
def test_a_refused_pair_is_refused_at_construction_with_both_names_and_the_reason(one, other):
    for names in ((one, other), (other, one)):
        registered = [VARIANTS.get(name, (name,))[0] for name in names]
        # The one that declares it; of two that do, the first.
        is_second = registered[1] == "info_batch" and registered[0] != "curriculum"
        first, second = registered[::-1] if is_second else registered
        with pytest.raises(EngineError, match=rf"'{first}' .* can't run together with '{second}' .*: it declares"):
            trainer_of([make(name) for name in names])


@pytest.mark.parametrize("name", NAMES)
def test_of_these_alone_a_second_instance_is_refused_with_both_names(name):
    says = rf"'{name}' .* can't run together with '{name}' \(\w+-2 of .*: it declares"
    with pytest.raises(EngineError, match=says) if name in REFUSED_TWICE else nullcontext():
        Engine(State(algorithms=[make(name), make(name)]), Logger()).close()


@pytest.fixture(scope="module")
def plain():
    with trainer_of([]) as trainer:
        trainer.fit()
    return seen_of(trainer)


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_each_changes_the_training_and_says_so_in_its_traces_and_needs_no_logger(name, plain, monkeypatch):
    algorithm, recorded = make(name), RecordingDestination()
    apply = type(algorithm).apply
    monkeypatch.setattr(type(algorithm), "apply", lambda self, event, state, logger: apply(self, event, state))
    with trainer_of([algorithm], loggers=recorded) as changed:
        changed.fit()

    done = [(trace.name, trace.run) for traces in recorded.traces for trace in traces.values()]
    assert done and set(done) == {(type(algorithm).__name__, True)}
    assert plain != seen_of(changed)
    assert {name.partition("/")[0] for _, metrics in recorded.metrics for name in metrics} == {"train", "eval"}


def seen_of(trainer):
    """Return all that an algorithm may change: the weights and their layout, the modules, the measured numbers."""
    kept = {key: (value.stride(), value.tolist()) for key, value in weights(trainer).items()}
    return kept, [type(module) for module in trainer.state.model.modules()], trainer.state.metrics


def test_the_published_table_is_that_of_the_engine_and_refuses_what_these_tests_expect_to_be_refused():
    text = (DOCS / "reference" / "pairs.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(DOCS / "pairs.py"))["as_text"]() == text, "run: python docs/pairs.py"
    rows = {tuple(line.replace("`", "").split(" | ")[:2]) for line in text.splitlines() if "| refused |" in line[-200:]}
    assert "| list |" not in text
    assert {(one.strip("| "), other) for one, other in rows if other in NAMES} == REFUSED


def test_a_plugin_from_elsewhere_is_not_in_the_table(install):
    install("other-plugin", {"algorithms": {"other": "other_module:Other"}})

    assert "other" in {record.name for record in Registry.scan().records}
    assert sorted(runpy.run_path(str(DOCS / "pairs.py"))["algorithm_names"]()) == NAMES
