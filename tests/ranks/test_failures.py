"""A rank that fails, in any way and at any time, ends the others: soon, with the reason, and torchrun shows it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .failing import EVENTS

pytestmark = [pytest.mark.ranks, pytest.mark.full]

RAISED = [*EVENTS, "model", "backward", "loader", "loader workers", "memory", "close", "close of all"]
RAISED += ["predict", "between"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return how each pair of processes ended."""
    out = tmp_path_factory.mktemp("failing") / "out.json"
    program = Path(__file__).parent / "failing.py"
    subprocess.run([sys.executable, str(program), str(out)], check=True, timeout=400)
    return json.loads(out.read_text())


@pytest.mark.parametrize("case", RAISED)
def test_the_others_say_who_failed_and_why(results, case):
    first, second = results[case]["records"]
    others = {"memory": "OutOfMemoryError", "loader workers": "ValueError: Caught ValueError"}
    kind = others.get(case, "ValueError: boom")
    assert first["message"].startswith(f"RankError: rank 0 ends because rank 1 failed: {kind}")
    assert second["message"].startswith(kind)
    assert first["extraInfo"]["timestamp"] > second["extraInfo"]["timestamp"]  # else torchrun calls it the cause
    assert "Traceback" in first["extraInfo"]["py_callstack"]
    assert 0 not in results[case]["codes"]


def test_every_process_has_ended_within_15_seconds(results):
    late = {case: round(ended["seconds"], 1) for case, ended in results.items() if ended["seconds"] > 15}
    assert late == {}


def ends_because(results, case, rank, *codes):
    """Return why a rank says that it ends, after a look at the exit codes."""
    assert results[case]["codes"] == [*codes]
    return results[case]["records"][rank]["message"].removeprefix(f"RankError: rank {rank} ends because ")


def test_the_rank_that_holds_the_store_lives_until_it_is_read(results):
    assert ends_because(results, "model@0", 1, 1, 1) == "rank 0 failed: ValueError: boom"


def test_a_rank_in_the_users_code_is_ended_and_shows_where_it_was(results):
    assert results["sleep"]["codes"] == [1, 1]
    assert "time.sleep(" in results["sleep"]["outputs"][0]


def test_a_killed_rank_is_named_and_an_exit_of_one_rank_alone_is_a_failure(results):
    assert ends_because(results, "kill", 0, 1, -9) == "rank 1 is gone"
    assert ends_because(results, "exit", 0, 1, 0).startswith("rank 1 failed: SystemExit")


def test_the_end_of_the_store_is_told_as_such_and_no_rank_is_blamed(results):
    told = "the store that the ranks share is gone, with the process that holds it"
    assert ends_because(results, "kill@0", 1, -9, 1) == told


def test_a_save_may_take_longer_than_the_ranks_wait_for_each_other(results):
    assert results["slow save@0"]["codes"] == [0, 0]
    first, second = results["slow save@0"]["outputs"]
    assert first.count("CheckpointWarning: rank 0 is still writing a checkpoint after 3 s") == 1
    assert "no checkpoint was written" not in first
    assert "CheckpointWarning" not in second


def test_rank_0_waits_for_a_part_of_a_checkpoint_as_long_as_for_a_message_and_trains_on(results):
    assert results["slow share"]["codes"] == [0, 0]
    told = "3 s are up, and rank 1 had not written a part; training continues"
    assert results["slow share"]["outputs"][0].count(told) == 1


def test_a_rank_that_hangs_is_named_with_its_place(results):
    message = ends_because(results, "hang", 0, 1, 1)
    assert message.startswith("rank 1 is late by more than 3sec: rank 1 is at ") and message.endswith(" in hang")
