"""The rules of the conformance kit: what each check demands, why, and how to fix what breaks it. A leaf; no torch."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """What a check demands, why that matters, and how to fix what breaks it: three sentences."""

    says: str
    why: str
    remedy: str


class BrokenRule(AssertionError):  # noqa: N818  it reports the algorithm, not an error in the kit
    """What a failing check of the conformance kit raises.

    Args:
        who: the algorithm's class or the pass.
        check: the name of the check.
        seen: what was seen, as a sentence without its full stop.
    """

    def __init__(self, who: str, check: str, rule: Rule, seen: str) -> None:
        self.who, self.check, self.rule, self.seen = who, check, rule, seen
        super().__init__(who, check, rule, seen)

    def __str__(self) -> str:
        return (
            f"{self.who} breaks the rule of {self.check}: {self.rule.says} Seen: {self.seen}. "
            f"Why it matters: {self.rule.why} To fix it: {self.rule.remedy}"
        )


BrokenRule.__module__ = __package__  # the name by which it is imported, and which pytest shows


ALGORITHM_RULES = {
    "test_metadata": Rule(
        "Its metadata is a valid AlgorithmMetadata, and its name, if given, is the entry point's, or the class's in "
        "snake case if no installed distribution ships the class.",
        "Configs, `before` and `after`, and error messages refer to an algorithm by that one name, and the engine "
        "decides by metadata alone what to ask and in which order.",
        "Make metadata with AlgorithmMetadata(...), which validates it, and give it the entry point's name.",
    ),
    "test_match_returns_bool": Rule(
        "`match` returns True or False, each time.",
        "A forgotten `return` is None, which counts as False: the algorithm would never run, and nothing would say "
        "so. The engine refuses a first answer that is not a bool.",
        "Return a comparison, or bool(...) of anything else, in every branch.",
    ),
    "test_match_is_pure": Rule(
        "`match` only looks: it changes neither State nor the algorithm, and gives the same answer when asked again.",
        "All algorithms are asked before any is applied, and asked again when an exception has to be undone: a change "
        "in `match` changes what the others see.",
        "Move anything with an effect to `apply`; let `match` depend on event, State and settings.",
    ),
    "test_match_only_declared_events": Rule(
        "`match` is false at each event that metadata.events does not list, and no name in its code is one slip away "
        "from an event's.",
        "Loops that ask at every event, subclasses with more events, and readers of the metadata would see it run "
        "where it has nothing to do.",
        "Compare the event in `match`, as in `return event is Event.AFTER_LOSS`, or list the event.",
    ),
    "test_finish": Rule(
        "After it has called `finish`, it changes nothing more, whether `match` is asked or not.",
        "A run that is resumed, or in a loop of somebody else's, asks again what has finished, and has to end alike.",
        "Call `finish` where nothing is left to do for the rest of the run, in a longer one too; state_dict tells it.",
    ),
    "test_match_is_fast": Rule(
        "`match` takes less than 20 microseconds.",
        "It is asked at each listed event of each step, whether the algorithm runs or not: small models must not pay "
        "for idle algorithms.",
        "Compute in `apply` and remember what `match` needs; don't read tensors there.",
    ),
    "test_writes_declared": Rule(
        "It runs within a few steps, and `apply` changes only the State fields that metadata.writes declares, and "
        "never the loader's own tensors in place.",
        "Users are told what changed their batch or loss, and warned of two writers of one field; a loader that keeps "
        "its tensors would return changed data in the next epoch.",
        "Declare the field in `writes`, or leave it alone; put new tensors in with state.batch_set_item; return an "
        "instance from make_algorithm that runs early and accepts the kit's parts.",
    ),
    "test_restores": Rule(
        "What it changes at the first half of a pair of events is restored, bit for bit, at the second half, if its "
        "metadata lists both; an evaluation leaves weights and the optimizers' state as it found them.",
        "Whatever runs after the pair relies on what was there before it: other algorithms, metrics, the optimizer.",
        "Keep what was there at the first half and put that same object back at the second; list both in metadata.",
    ),
    "test_restores_after_an_exception": Rule(
        "What it changes at the first half of a pair is also restored if the step in between raises.",
        "A failed evaluation or an interrupted step must not leave averaged weights or scaled inputs behind: training "
        "continues from there.",
        "Let `match` and `apply` of the second half need nothing that the step in between makes, such as outputs or "
        "loss.",
    ),
    "test_no_global_random_draw": Rule(
        "It draws nothing from the global generators of torch, NumPy and random, and a generator of its own starts "
        "from the run's seed.",
        "A draw from a global generator shifts the numbers of everything else: data order, dropout, other algorithms, "
        "and the comparison with a run without it; a constant seed makes runs with several seeds differ less than "
        "they should.",
        "Own a torch.Generator seeded with state.derive_seed(name), and save it in state_dict; for new modules use "
        "torch.random.fork_rng.",
    ),
    "test_arguments": Rule(
        "The constructor refuses what it can't use with a TypeError or ValueError, and equality returns True or False.",
        "A wrong setting that is found half-way through training has cost hours.",
        "Check each argument in __init__ and raise engine_core.errors.ArgumentError or ArgumentTypeError; leave "
        "tensors out of equality, as the default of object does.",
    ),
    "test_repr": Rule(
        "repr begins with the class's name, is short, the same each time and for each instance made alike, and has "
        "neither tensors nor addresses in it.",
        "Logs, notebooks and error messages print instances: what they say has to tell the settings, and compare equal "
        "from run to run.",
        "Leave __repr__ to Algorithm, which shows the constructor's call from the attributes that have its arguments' "
        "names; if you write one, show settings, not state.",
    ),
    "test_state_dict": Rule(
        "state_dict holds tensors and JSON values under string keys, is independent of the live state, and "
        "load_state_dict restores it unchanged.",
        "A checkpoint holds nothing else, so that loading one runs no code, and what is saved must not change later.",
        "Return generator.get_state() for a generator, lists for tuples and sets, [key, value] pairs for a mapping "
        "with other keys, and clones of tensors that change.",
    ),
    "test_resume": Rule(
        "A run that is saved and resumed, twice in a row or within an epoch, ends bit for bit like the uninterrupted "
        "one.",
        "Jobs are interrupted; a run that changes its course then can be neither repeated nor trusted.",
        "Put counters, averages and generators into state_dict, restore them in load_state_dict, and don't reset at "
        "FIT_START what was loaded; EPOCH_START does not fire again in a run that resumes within an epoch.",
    ),
    "test_two_instances": Rule(
        "Two instances work in one run, or are refused when the Trainer is made, and what one does in its own run "
        "does not affect the other.",
        "Sweeps and notebooks create several instances; state that the class shares mixes their runs silently.",
        "Keep state on the instance, not on the class or module; to refuse a second one, declare a tag and conflicts "
        "with that tag.",
    ),
    "test_second_run": Rule(
        "One instance in two runs, one after the other, does in the second what a fresh instance does.",
        "Anything kept from the first run, such as its loss, a counter or averaged weights, spoils the second one "
        "silently.",
        "Reset at INIT, or at the first event of a State that it has not seen.",
    ),
    "test_batches": Rule(
        "It works on tuples, lists, dicts and nested batches, or refuses them in `validate`.",
        "Users' batches come in all these forms, and a refusal before the first step costs nothing.",
        "Access items with state.batch_get_item(key) and a key argument, check in `validate` that they are there, and "
        "raise engine_core.errors.ArgumentError if not.",
    ),
    "test_ragged_batches": Rule(
        "It works with a smaller last batch, with batches of one row, and in a run in which it never matches.",
        "Most data sets are not a multiple of the batch size, and that shows at the end of the first epoch.",
        "Take the number of rows from the current batch, with state.batches.rows(state.batch).",
    ),
    "test_microbatches": Rule(
        "It works if a batch is split into microbatches, the last of them smaller, and runs for each of them or once "
        "for each batch.",
        "Memory decides whether batches are split, not the method: from BEFORE_FORWARD to AFTER_BACKWARD State holds "
        "a part of the batch, several times a step.",
        "Keep nothing from the whole batch for use inside a microbatch, and do at AFTER_TRAIN_BATCH what should "
        "happen once.",
    ),
    "test_two_ranks": Rule(
        "On two ranks it ends with the results of one process, or with what `on_ranks` of the test class says, or is "
        "refused when the Trainer is made.",
        "Users start the same program with torchrun. A method that sees one rank's rows alone is a different method "
        "there, and a message that one rank waits for alone ends the run.",
        "Choose among the rows that state.ranks.gather returns, divide a sum over ranks by a count over ranks, draw "
        "from an OwnGenerator, and let all ranks call a method of state.ranks, or none.",
    ),
    "test_needs": Rule(
        "In a training loop that lacks one thing which metadata.needs does not list, it does what it does in a loop "
        "that has all.",
        "Users of other trainers are told at the start what can't work there. What is not declared is not told: it "
        "raises in the middle of a run, or silently does something else.",
        "List in metadata's needs what it uses of the loop, or do without it.",
    ),
    "test_autocast": Rule(
        "It works under bf16 autocast, and leaves the weights in the dtype they had.",
        "Most runs train in mixed precision: outputs are bfloat16 there while weights are float32.",
        "Convert with tensor.to(other.dtype) before mixing, or compute in float32.",
    ),
    "test_order_independent": Rule(
        "Its results don't depend on whether it runs before or after another algorithm, unless one of the two declares "
        "the order.",
        "Users write a list; two runs with the same methods must not differ because the list was sorted.",
        "Declare `before` or `after` with the other's name or tag, or `conflicts`.",
    ),
    "test_compile": Rule(
        "With the tag `compile` it works on a model that torch.compile has wrapped, with the same results.",
        "The tag is a promise that users rely on when they train for weeks.",
        "Access modules through modules() and parameters(), don't change any forward, or drop the tag.",
    ),
    "test_unmatched_cost": Rule(
        "An event that it does not list costs less than 0.2 microseconds more than without it.",
        "The engine promises that what is installed but idle costs nothing.",
        "List the events in metadata, and register no callbacks or hooks for others.",
    ),
}

PASS_RULES = {
    "test_metadata": Rule(
        "It is marked with @algorithm_pass, its metadata is valid, and the name in it is the entry point's, or the "
        "function's if no distribution registers it.",
        "Passes are sorted by what they declare and referred to by name; the engine refuses a registered pass without "
        "the mark.",
        "Mark it with @algorithm_pass(stage=..., events=...) and give it the entry point's name.",
    ),
    "test_total": Rule(
        "It returns a list for each list it is given: empty, of one, with unknown algorithms and with several of a "
        "class.",
        "It runs at each event in the runs of people whose algorithms its author does not know.",
        "Return the list in every branch, test for a class with isinstance, and read metadata with getattr.",
    ),
    "test_stable": Rule(
        "Algorithms that it can't tell apart, of one class or of classes unknown to it, keep their order; a pass of "
        "stage `direction` may reverse them all.",
        "The user's list decides wherever no rule of a pass does.",
        "Sort with sort_to_front or sort_to_back, or with a key that is the same for all others; `sorted` is stable.",
    ),
    "test_idempotent": Rule(
        "Run on its own result, it changes nothing; a pass of stage `direction` may reverse the list back.",
        "Passes run one after the other, some twice if a user adds one; the order must settle.",
        "Compute an algorithm's place from what it is, not from where it stands.",
    ),
    "test_deterministic": Rule(
        "It returns the same order for the same list and event, however often it is called, and touches nothing else: "
        "no attribute of an algorithm, no global generator.",
        "Its result is remembered and shown by `explain`; an order that changes from call to call can't be explained, "
        "and the engine decides how often it is called.",
        "Depend on the arguments alone and change nothing; declare pure=False if the order has to depend on more.",
    ),
    "test_loses_nobody": Rule(
        "It returns all the algorithms it was given, each once, and nothing else, unless it declares changes_members.",
        "An algorithm that a user asked for and that silently does not run spoils an experiment.",
        "Return all of them, or declare changes_members=True.",
    ),
    "test_fast": Rule(
        "It takes less than a millisecond for ten algorithms, or less than 50 microseconds if it declares pure=False.",
        "It runs for each event and each set of matching algorithms, or in each step if it is not pure.",
        "Look only at the algorithms.",
    ),
}
