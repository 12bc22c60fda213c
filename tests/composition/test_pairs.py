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
    ("gradient_penalty", "compile"),
    ("ema", "lawa"),
    ("lawa", "layer_stacking"),
    ("lawa", "swa"),
    *((other, "info_batch") for other in EXCLUDED[:2]),
    ("info_batch", EXCLUDED[2]),
}
UNSEEN = ("activation_checkpointing", "compile")
"""What computes the same in the same modules, in another way."""
REFUSED_TWICE = {"cutmix", "ema", "info_batch", "label_smoothing", "layer_freezing", "mixup", "sam", "swa"}
REFUSED_TWICE |= {"alternating_flip", "curriculum", "sequence_warmup", "lawa", "lookahead", "zclip"}
FEWER = {"info_batch": len(BATCHES[:-1]) // 2, "curriculum": len(BATCHES[:-1]) - 1}
"""How many steps these leave out at most."""
REFUSED_VARIANTS = {(variant, "info_batch") for variant, (own, _) in VARIANTS.items() if own in EXCLUDED}
WARNED_OF = ("mixup of losses", "cutmix of losses")
FORBIDDEN = {frozenset(pair) for pair in (*REFUSED, *REFUSED_VARIANTS, WARNED_OF)}


def own(name):
    """Return the registered name of an algorithm or a variant."""
    return VARIANTS.get(name, (name,))[0]


def groups_with_each_pair(size):
    """Return lists of algorithms and variants in which each two that may train together do so at least once."""
    names = sorted({*NAMES, *VARIANTS})

    def may_join(name, group):
        return all(own(name) != own(other) and frozenset((name, other)) not in FORBIDDEN for other in group)

    left, groups = [pair for pair in itertools.combinations(names, 2) if may_join(pair[0], pair[1:])], []
    while left:
        group = list(left[0])
        while len(group) < size:
            new = {name: sum(name in pair and {*pair} <= {name, *group} for pair in left) for name in names}
            best = max((name for name in names if may_join(name, group)), key=new.get, default=None)
            if best is None or not new[best]:
                break
            group.append(best)
        groups.append(group)
        left = [pair for pair in left if not {*pair} <= {*group}]
    return groups


QUICK = [["cutmix", "selective_backprop"], ["ema", "sam"], ["blurpool", "label_smoothing"]]
GROUPS = groups_with_each_pair(6)
FULL = [pytest.param(group, marks=pytest.mark.full) for group in GROUPS]


@pytest.mark.parametrize("names", [*QUICK, *FULL], ids=", ".join)
def test_algorithms_train_to_the_same_end_in_a_list_and_in_the_list_turned_around(names):
    check_both_orders(names)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.parametrize("names", [group for group in GROUPS if "sam" in group], ids=", ".join)
def test_with_microbatches_a_second_pass_is_the_same_in_both_orders_of_the_list(names):
    check_both_orders(names, microbatch_size=10)


def check_both_orders(names, **options):
    """Fail if the end depends on the order of the list, with the pairs for which it does."""
    if wrong := differing_in_both_orders(names, **options):
        pairs = itertools.combinations(names, 2)
        pytest.fail(f"differs: {wrong}; by pairs: {[p for p in pairs if differing_in_both_orders(p, **options)]}")


def differing_in_both_orders(names, **options):
    """Return what differs after training with algorithms in a list, and in the list turned around."""
    ends, metrics = [], []
    for ordered in (names, names[::-1]):
        with trainer_of([make(name) for name in ordered], **options) as trainer:
            trainer.fit()
        steps = EPOCHS * len(BATCHES[:-1])
        assert steps - sum(FEWER.get(name, 0) for name in names) <= trainer.state.timestamp.batch <= steps
        assert trainer.state.loss.isfinite()
        ends.append(weights(trainer))
        metrics.append(trainer.state.metrics)
    one, other = ends
    assert one.keys() == other.keys()
    moved = [name for name in one if not torch.equal(one[name], other[name])]
    return moved + [name for name in metrics[0] if metrics[0][name] != metrics[1][name]]


@pytest.mark.parametrize(("one", "other"), sorted(REFUSED | REFUSED_VARIANTS))
def test_a_refused_pair_is_refused_at_construction_with_both_names_and_the_reason(one, other):
    for names in ((one, other), (other, one)):
        registered = [own(name) for name in names]
        # The one that declares it; of two that do, the first.
        declared = (["layer_stacking", "lawa"], ["gradient_penalty", "compile"])
        is_second = registered in (*declared, *([other, "info_batch"] for other in EXCLUDED))
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
    assert (plain != seen_of(changed)) == (name not in UNSEEN)
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
