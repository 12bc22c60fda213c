"""Files, functions and argument lists stay small; the exceptions are few, and each has a reason."""

import ast
import functools

import pytest

from .tree import PACKAGE, REPOSITORY, parsed

LINES_OF_A_FILE, LINES_OF_A_FUNCTION, PARAMETERS = 500, 40, 6
LINES_OF_AN_ADAPTER = 350
# Of the files and folders of the core: what is added to one has to displace something in it.
BUDGET = {
    "": 4140,
    "batch": 790,
    "callbacks": 1540,
    "checkpoint": 1480,
    "cli": 1000,
    "config": 1198,
    "engine": 1640,
    "examples": 125,
    "explain": 603,
    "loggers": 680,
    "loop": 1390,
    "objective": 1355,
    "parallel": 1155,
    "passes": 835,
    "registry": 844,
    "run": 1415,
    "trainer": 4635,
}
FILES = 122
TRAINERS = ("accelerate", "lightning", "transformers")

LONGER_FUNCTIONS = {
    "trainer/loop.py:loop_of": "the loop: one nested function for each level, to be read top-down",
    "trainer/trainer.py:__init__": "the Trainer's arguments, one line each, frozen by a test",
    "sb-plugin/src/sb_plugin/algorithm.py:__init__": "the settings of the method, two lines each: given and checked",
}
MORE_PARAMETERS = {
    "callbacks/checkpoint_saver.py:__init__": "what users set, each by name",
    "trainer/trainer.py:__init__": "the Trainer's arguments, frozen by a test",
    "engine-core-author/src/engine_core_author/scaffold/creating.py:create_plugin": "each an option of the command",
    "engine-core-accelerate/src/engine_core_accelerate/loop.py:__init__": "what the Trainer takes of these",
    "engine-core-lightning/src/engine_core_lightning/callback.py:__init__": "likewise",
    "engine-core-transformers/src/engine_core_transformers/trainer.py:__init__": "likewise",
    "sb-plugin/src/sb_plugin/algorithm.py:__init__": "the settings of the method, known by these names from elsewhere",
    "sb-plugin/src/sb_plugin/functional.py:select_using_loss": "the same, as a function",
    "augmentation-plugin/src/augmentation_plugin/progressive_resizing.py:__init__": "likewise the method's settings",
    "augmentation-plugin/src/augmentation_plugin/resizing.py:resize_batch": "likewise, as a function",
    "surgery-plugin/src/surgery_plugin/stochastic_block.py:apply_stochastic_depth": "likewise",
    "surgery-plugin/src/surgery_plugin/ngrams.py:apply_ngram_embedding": "likewise",
}


@functools.cache
def sources():
    """Return the Python files of the core and of the plugins beside it, by a short name."""
    found = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
    plugins = REPOSITORY / "plugins"
    return found | {str(path.relative_to(plugins)): path for path in sorted(plugins.glob("*/src/**/*.py"))}


@functools.cache
def functions():
    """Return each function with its name here; a nested one counts for itself too."""
    return [
        (f"{name}:{node.name}", node)
        for name, path in sources().items()
        for node in ast.walk(parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def lines_without_docstring(function):
    docstring = ast.get_docstring(function, clean=False)
    return function.end_lineno - function.lineno + 1 - (len(docstring.splitlines()) if docstring else 0)


def parameters(function):
    given = function.args
    names = [p.arg for p in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_a_file_has_at_most_500_lines_in_the_tests_too():
    folders = [REPOSITORY / "tests", *(REPOSITORY / "plugins").glob("*/tests")]
    tests = {path.name: path for folder in folders for path in folder.rglob("*.py")}
    lengths = {name: lines_of(path) for name, path in {**tests, **sources()}.items()}
    assert {name: length for name, length in lengths.items() if length > LINES_OF_A_FILE} == {}


def test_the_core_and_each_room_of_it_keeps_to_its_budget_of_lines_and_files():
    files = {name: path for name, path in sources().items() if path.is_relative_to(PACKAGE)}
    lines = dict.fromkeys(BUDGET, 0)
    for name, path in files.items():
        lines[name.split("/")[0] if "/" in name else ""] += lines_of(path)
    assert {room: found for room, found in lines.items() if found > BUDGET[room]} == {}
    assert len(files) <= FILES


def test_a_function_has_at_most_40_lines_beside_its_docstring_and_6_parameters():
    long = {name for name, node in functions() if lines_without_docstring(node) > LINES_OF_A_FUNCTION}
    many = {name for name, node in functions() if parameters(node) > PARAMETERS}
    assert (long - set(LONGER_FUNCTIONS), many - set(MORE_PARAMETERS)) == (set(), set())
    # An exception that is no longer needed is taken off the list.
    assert {*LONGER_FUNCTIONS, *MORE_PARAMETERS} - long - many == set()


def test_a_module_opens_with_one_to_five_lines_that_say_what_it_is():
    lengths = {name: len((ast.get_docstring(parsed(path)) or "").splitlines()) for name, path in sources().items()}
    del lengths["hookspecs.py"]
    assert {name: length for name, length in lengths.items() if not 1 <= length <= 5} == {}


def test_the_trainers_arguments_are_these_and_a_new_one_has_to_show_why_a_callback_cannot_do_it():
    (trainer,) = [
        node
        for node in parsed(sources()["trainer/trainer.py"]).body
        if isinstance(node, ast.ClassDef) and node.name == "Trainer"
    ]
    (init,) = [node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    assert [p.arg for p in init.args.args] == ["self", "model", "train_dataloader"]
    assert " ".join(p.arg for p in init.args.kwonlyargs) == (
        "max_duration loss_fn optimizers schedulers eval_dataloader eval_interval metrics algorithms callbacks "
        "loggers algorithm_passes microbatch_size grad_clip_norm precision device seed progress_bar run_name "
        "load_path autoresume load_weights_only load_strict load_changed parallel "  # all needed before any event fires
        "batches "  # no event fires before rows are counted, dealt to the ranks and cut into microbatches
        "objective"  # nothing but the loop gives model and loss what they get of a batch
    )


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_adapter_is_thin_because_the_seam_does_the_work(trainer):
    own = ("written.py", "logits.py")  # the events within a step that the user wrote; a loss of logits and labels
    files = [path for name, path in sources().items() if name.startswith(f"engine-core-{trainer}/")]
    files = [path for path in files if path.name not in own]
    assert 0 < sum(map(lines_of, files)) <= LINES_OF_AN_ADAPTER


def does_more(node):
    """Say whether an assert does more than tell mypy that a value is not None: `python -O` leaves it out."""
    return isinstance(node, ast.Assert) and not (node.msg is None and ast.unparse(node).endswith(" is not None"))


def test_an_assert_outside_of_the_tests_only_narrows_a_type():
    assert len(sources()) > 200
    assert [name for name, path in sources().items() if any(map(does_more, ast.walk(parsed(path))))] == []
    for check in ("assert x", "assert x is not None, f()", "assert x > 0"):
        assert does_more(ast.parse(check).body[0])
