"""Words for messages: lists of names, and exceptions in a line."""

import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine_core.messages import cause_of, join_words, warn


def test_join_words_gives_four_names_or_three_and_how_many_more():
    words = {"": "", "a": "a", "ab": "a and b", "abcd": "a, b, c and d", "abcdefg": "a, b, c and 4 more"}
    assert {names: join_words(names) for names in words} == words
    assert join_words("abcde", most=5) == "a, b, c, d and e"


class CannotBeShown(Exception):  # noqa: N818
    def __str__(self):
        raise KeyError


def test_cause_of_an_exception_is_its_type_and_its_message_in_one_line():
    for error, cause in [
        (ValueError("in\n  two lines"), "ValueError: in two lines"),
        (TypeError(), "TypeError"),
        (SyntaxError("invalid", ("plugin.py", 3, 1, "")), "SyntaxError: invalid (at plugin.py:3)"),
        (CannotBeShown(), "CannotBeShown: it can't be shown, since its __str__ raises KeyError"),
    ]:
        assert cause_of(error) == cause


def run_in(name, code, **names):
    """Run code as that of a module, and return what it defines."""
    namespace = {"__name__": name, **names}
    exec(compile(code, f"{name}.py", "exec"), namespace)
    return namespace


TOLD = "def told():\n    warn('text', UserWarning)\n"
CALLS = "def calls():\n    return told()\n"


@pytest.mark.parametrize(
    ("modules", "place"),
    [
        (["engine_core.engine"], __file__),
        (["engine_core.engine", "contextlib", "torch.nn", "engine_core.trainer"], __file__),
        (["a_plugin.scoring", "torch.nn", "a_plugin.scorers", "engine_core.engine"], __file__),
        (["engine_core.engine", "my_net"], "my_net.py"),
        (["engine_core.surgery", "a_plugin.surgery", "a_plugin.algorithm", "engine_core.engine"], __file__),
        (["mine.algorithm", "engine_core.engine", "mine.train"], "mine.train.py"),
    ],
)
def test_a_warning_points_past_the_package_that_warns_and_past_ours_at_the_users_line(modules, place):
    told = run_in(modules[0], TOLD, warn=warn)["told"]
    for name in modules[1:]:
        told = run_in(name, CALLS, told=told)["calls"]
    with pytest.warns(UserWarning, match="text") as caught:
        told()
    assert [warning.filename for warning in caught] == [place]


def test_a_script_that_warns_by_itself_is_told_its_own_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from engine_core.messages import warn\nwarn('text', UserWarning)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stderr.startswith(f"{script}:2: UserWarning: text")


def test_all_warnings_are_issued_there():
    repository = Path(__file__).parents[2]
    files = [*repository.glob("engine_core/**/*.py"), *repository.glob("plugins/*/src/**/*.py")]
    issuing = [file.name for file in files if re.search(r"warnings\.warn\(", file.read_text(encoding="utf-8"))]
    assert issuing == ["messages.py"]


@pytest.mark.parametrize(
    ("rank", "size", "of_all", "of_rank"),
    [(0, 1, ["text"], ["text"]), (0, 2, ["text"], ["text (rank 0)"]), (1, 2, [], ["text (rank 1)"])],
)
def test_rank_0_warns_for_all_and_each_rank_of_what_concerns_it_alone(monkeypatch, rank, size, of_all, of_rank):
    group = {"is_available": True, "is_initialized": True, "get_rank": rank, "get_world_size": size}
    fake = SimpleNamespace(**{name: lambda value=value: value for name, value in group.items()})
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)

    def told(**options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn("text", UserWarning, **options)
        return [str(warning.message) for warning in caught]

    assert (told(), told(of_rank=True)) == (of_all, of_rank)
