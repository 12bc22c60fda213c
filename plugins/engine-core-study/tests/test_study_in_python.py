"""`study()` refuses what it can't study before anything trains, with what is wrong and what to write."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine_core.errors import ArgumentError, ArgumentTypeError, EngineError
from engine_core_study import study

MADE = """\
import torch
from engine_core import Trainer
from study_parts import Noise, make_loader

calls = []


def make(seed, algorithms, **changes):
    calls.append(seed)
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 2)
    given = {"eval_dataloader": {"test": make_loader("test")}, "loss_fn": torch.nn.functional.cross_entropy}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    given |= {"max_duration": "1ep", "optimizers": optimizer, "algorithms": [Noise() for _ in algorithms]}
    given |= {"progress_bar": False}
    return Trainer(model, make_loader("train"), **{**given, **changes})


def forgets(seed, algorithms):
    make(seed, algorithms)


def without_evaluation(seed, algorithms):
    return make(seed, algorithms, eval_dataloader=None)


def breaks_for_some(seed, algorithms):
    if algorithms:
        raise RuntimeError("no such file")
    return make(seed, algorithms)
"""
ARMS = {"plain": [], "ema": ["ema"]}


@pytest.fixture
def made(here, monkeypatch):
    """Return a module with functions that make a Trainer, or something else."""
    Path("made.py").write_text(MADE)
    monkeypatch.syspath_prepend(here)
    import made  # noqa: PLC0415

    yield made
    del sys.modules["made"]
    sys.modules.pop("study_parts", None)


def refused(what, arms=ARMS, seeds=2, *, report="test/loss", jobs=None):
    """Return what is wrong; nothing has been written."""
    with pytest.raises(EngineError) as raised:
        study(what, arms, seeds, out="out", report=report, jobs=jobs)
    assert not Path("out").exists()
    return raised.value


@pytest.mark.parametrize("jobs", [None, 1])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("forgets", "arm 'plain': make(0, []) returned None, not a Trainer: end it with `return Trainer(...)`"),
        ("without_evaluation", "make(0, []) returned a Trainer that evaluates nothing: give it an eval_dataloader"),
        ("breaks_for_some", "arm 'ema': make(0, ['ema']) failed: RuntimeError: no such file"),
    ],
)
def test_a_function_that_makes_no_trainer_is_refused(made, name, message, jobs):
    assert message in str(refused(getattr(made, name), jobs=jobs))


def test_a_function_that_takes_something_else_is_refused(made):
    assert "make(0, []) failed: TypeError" in str(refused(lambda seed: made.make(seed, [])))


def test_a_result_that_no_evaluation_gives_is_refused(made):
    told = "report: no evaluation of arm 'plain' gives 'tset/loss'; did you mean 'test'?"
    assert str(refused(made.make, report="tset/loss")) == told


def test_what_can_not_be_sent_to_a_process_is_refused_and_trains_without(made):
    def closure(seed, algorithms):
        return made.make(seed, algorithms)

    for function in (closure, lambda seed, algorithms: made.make(seed, algorithms, max_duration="1ep")):
        error = refused(function, jobs=2)
        assert isinstance(error, ArgumentTypeError)
        assert str(error).startswith("jobs=2: the function can't be sent to another process (")
        assert "write it as a `def` at the top of a file" in str(error)
    arms = {"plain": [], "own": [("ema", {"of": lambda: 0})]}
    assert str(refused(made.make, arms, jobs=1)).startswith("jobs=1: arm 'own' can't be sent to another process")
    assert study(closure, ARMS, 1, out="out", report="test/loss").arms["ema"]["values"]["test/loss"]["n"] == 1


@pytest.mark.full
@pytest.mark.parametrize("options", [["-c", "{}"], ["-"]])
def test_a_function_of_a_notebook_or_prompt_is_refused_where_processes_train(made, options):
    program = (
        "import made\nfrom engine_core_study import study\n"
        "def make(seed, algorithms):\n    return made.make(seed, algorithms)\n"
        "study(make, {'a': [], 'b': ['ema']}, out='out', report='test/loss', jobs=2)\n"
    )
    command = [sys.executable, *(option.format(program) for option in options)]
    ended = subprocess.run(command, input=program, capture_output=True, text=True, check=False)
    assert "jobs=2: the function is defined in a notebook or at a prompt" in ended.stderr
    assert "write it into a file, such as made.py, and `from made import ...`" in ended.stderr


@pytest.mark.full
@pytest.mark.parametrize("what", ["made.make", "'run.yaml'"])
def test_a_program_that_its_own_processes_would_run_again_is_told_to_guard_the_call(made, what):
    arms = {"made.make": {"a": [], "b": ["ema"]}, "'run.yaml'": {"a": {}, "b": {"set": ["optimizer.args.lr=0.1"]}}}[
        what
    ]
    call = f"study({what}, {arms}, 1, out='out', report='test/loss', jobs=1)"
    Path("program.py").write_text(f"import made\nfrom engine_core_study import study\n{call}\n")
    ended = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, check=False)
    told = 'so it has to be a file that calls study() under `if __name__ == "__main__":`'
    assert told in ended.stderr.splitlines()[-1]
    assert not Path("out").exists()


@pytest.mark.full
def test_a_program_of_a_config_needs_no_guard_where_its_own_process_trains(made):
    call = "study('run.yaml', {'a': {}, 'b': {'set': ['optimizer.args.lr=0.1']}}, 1, out='out', report='test/loss')"
    Path("program.py").write_text(f"from engine_core_study import study\n{call}\n")
    subprocess.run([sys.executable, "program.py"], check=True)
    assert Path("out/study.json").exists()


@pytest.mark.parametrize("jobs", [None, 2])
def test_a_finished_study_makes_no_trainer(made, jobs):
    results = study(made.make, ARMS, 2, out="out", report="test/loss", jobs=jobs)
    assert [run["status"] for run in results.content["runs"]] == ["finished"] * 4
    made.calls.clear()
    study(made.make, ARMS, 2, out="out", report="test/loss", jobs=jobs)
    assert made.calls == []


@pytest.mark.parametrize("again", [["ema"], [("ema", {})], [["ema", {}]]])
def test_arms_that_are_equal_are_refused(made, again):
    told = "arm 'again' is equal to arm 'ema': take one out, or change it"
    assert str(refused(made.make, {**ARMS, "again": again})) == told


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (["plain", "ema"], "arms has to be a dict of names, as in {'plain': ..., 'other': ...}, not ['plain', 'ema']"),
        ({0: [], 1: ["ema"]}, "arms has to be a dict of names"),
        ({"plain": [], "ema": [("ema",)]}, "arm 'ema': ('ema',) has to be a name or a pair, as in ('mixup', {"),
        ({"plain": [], "ema": [()]}, "arm 'ema': () has to be a name or a pair"),
    ],
)
def test_arms_of_another_form_are_refused(made, arms, message):
    assert message in str(refused(made.make, arms))


@pytest.mark.parametrize("jobs", [0, -1, 1.5, "2", True])
@pytest.mark.parametrize("what", [None, "run.yaml"])
def test_a_number_of_processes_that_there_can_not_be_is_refused(made, what, jobs):
    told = f"^jobs={re.escape(repr(jobs))} .*how many processes train at once$"
    assert re.search(told, str(refused(what or made.make, jobs=jobs)))


@pytest.mark.parametrize("seeds", [0, -1, 2.5, "5", True, None, [], [1.5], [-1], [True]])
@pytest.mark.parametrize("what", [None, "run.yaml"])
def test_seeds_that_there_can_not_be_are_refused(made, what, seeds):
    error = refused(what or made.make, seeds=seeds)
    told = f"seeds has to be a number of seeds, such as 5, or a list of whole numbers, not {seeds!r}"
    assert (type(error), str(error)) == (ArgumentError, told)


@pytest.mark.parametrize("seeds", [np.int64(2), np.arange(2), range(2), (0, np.int32(1))])
def test_numbers_of_numpy_are_numbers(made, seeds):
    assert study(made.make, ARMS, seeds, out="out", report="test/loss").content["seeds"] == [0, 1]


def test_what_is_neither_a_file_nor_a_function_is_refused():
    assert str(refused(5)) == "give a config's file, or a function make(seed, algorithms), not 5"
