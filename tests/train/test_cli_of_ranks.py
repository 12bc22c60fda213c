"""Of several processes that `engine-core` runs in, one prints what went wrong; what it can't know is seen too."""

import json

from click.testing import CliRunner

from engine_core.cli import main
from engine_core.cli.groups import is_told_elsewhere
from engine_core.errors import RankError

SECOND = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
NO_FILE = "missing.yaml: there is no such file"


def test_an_error_of_a_later_process_alone_is_in_torchruns_summary_and_not_on_the_screen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = {**SECOND, "TORCHELASTIC_ERROR_FILE": "error.json"}
    ended = CliRunner().invoke(main, ["train", "missing.yaml"], env=env)
    assert (ended.exit_code, ended.output) == (2, "")
    recorded = json.loads((tmp_path / "error.json").read_text())["message"]
    assert recorded["message"].startswith(f"ConfigError: {NO_FILE}")
    assert NO_FILE in recorded["extraInfo"]["py_callstack"]  # which the summary shows, under the rank


def test_without_torchrun_each_process_prints_its_error_with_its_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(main, ["train", "missing.yaml"], env=SECOND)
    assert ended.exit_code == 2
    assert ended.output.startswith(f"Error: rank 1: {NO_FILE}")


def test_the_end_because_of_another_rank_is_printed_only_if_no_rank_can_print_why():
    ends = {
        "rank 0 failed: ArgumentError: boom": True,
        "rank 0 is gone": False,
        "rank 2 failed: ValueError: boom": True,
    }
    assert {why: is_told_elsewhere(RankError(f"rank 1 ends because {why}")) for why in ends} == ends
