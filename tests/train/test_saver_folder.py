"""The folder of a saver: which run it belongs to, and where it is."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import resolve
from engine_core.errors import CheckpointError

from .parts import Memory, at, batches, net, rows, same, trainer


def run(folder: Path | str, **settings: Any) -> Any:
    saver = CheckpointSaver(folder, "1ba", keep_last=None)
    return trainer(batches(8, 8, 8), net(), max_duration="2ep", callbacks=saver, **settings)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("ep*"))


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
def test_a_run_that_was_loaded_from_elsewhere_does_not_take_another_runs_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with run(tmp_path / name) as made:
            made.fit()
    before = names(tmp_path / "a")
    made = run(tmp_path / "a", load_path=tmp_path / "b" / "ep1-ba4")
    with made, pytest.raises(CheckpointError, match="holds checkpoints of another run"):
        made.fit()
    assert names(tmp_path / "a") == before
    with run(tmp_path / "a", autoresume=True) as made:  # it is not held either
        made.fit()


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
@pytest.mark.parametrize("path", ["a", "a/ep1-ba4", "a/../a/ep1-ba4"])
def test_a_run_that_was_loaded_from_its_folder_continues_in_it(path: str, tmp_path: Path) -> None:
    with run(tmp_path / "a") as made:
        made.fit()
    with run(tmp_path / "a", load_path=tmp_path / path) as made:
        made.fit()
    assert made.state.timestamp.batch == 6


def test_a_relative_folder_stays_where_it_was_when_the_saver_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with run("saved") as made:
        made.fit("2ba")
        monkeypatch.chdir(tmp_path / "elsewhere")
        made.fit("2ba")
    assert resolve(tmp_path / "saved").name == "ep1-ba4"
    assert not (tmp_path / "elsewhere" / "saved").exists()


def test_evaluation_loaders_that_draw_from_their_own_generators_are_resumed_exactly(tmp_path: Path) -> None:
    def made(memory: Memory, **settings: Any) -> Any:
        data, generator = TensorDataset(*rows(20)), torch.Generator().manual_seed(5)
        sampler = RandomSampler(data, num_samples=6, generator=generator)
        return trainer(
            batches(8, 8, 8),
            net(),
            max_duration="3ep",
            eval_dataloader=DataLoader(data, batch_size=3, sampler=sampler),
            loggers=memory,
            seed=1,
            **settings,
        )

    whole, rest = Memory(), Memory()
    with made(whole, callbacks=CheckpointSaver(tmp_path, "1ba", keep_last=None)) as first:
        first.fit()
    with made(rest, load_path=tmp_path / "ep1-ba4") as resumed:
        resumed.fit()
    assert same(resumed.state.metrics, first.state.metrics)
    assert rest.metrics == whole.metrics[len(whole.metrics) - len(rest.metrics) :]


@pytest.mark.parametrize("order", [("8ba", "2ba"), ("2ba", "8ba")])
def test_several_savers_continue_each_in_its_folder_from_the_latest(order: tuple[str, str], tmp_path: Path) -> None:
    def made(**settings: Any) -> Any:
        savers = [CheckpointSaver(tmp_path / interval, interval) for interval in order]
        return trainer(batches(8, 8, 8), net(), max_duration="4ep", callbacks=savers, **settings)

    with made() as first:
        first.fit("5ba")
    (tmp_path / "8ba" / "latest").unlink()
    shutil.rmtree(tmp_path / "8ba" / "ep1-ba5")  # as if the process had been killed before
    with made(autoresume=True) as second:
        assert second.state.timestamp.batch == 5
        second.fit()
    assert [resolve(tmp_path / interval).name for interval in order] == ["ep4-ba12", "ep4-ba12"]


def test_a_result_at_which_the_run_was_paused_counts_for_the_next_regular_checkpoint(tmp_path: Path) -> None:
    def made(folder: Path, *callbacks: Any, **settings: Any) -> Any:
        saver = CheckpointSaver(folder, "3ba", keep_last=1, keep_best=1, metric="eval/loss")
        given = {"eval_dataloader": batches(4), "eval_interval": "2ba", "seed": 1, **settings}
        return trainer(batches(*[8] * 10), net(), max_duration="10ba", callbacks=[*callbacks, saver], **given)

    with made(tmp_path / "whole") as whole:
        whole.fit()
    for batch in range(1, 10):
        pauses = at(
            "batch_checkpoint", lambda state, batch=batch: state.timestamp.batch == batch and state.pause_training()
        )
        folder = tmp_path / str(batch)
        with made(folder, pauses) as paused:
            paused.fit()
        with made(folder, autoresume=True) as resumed:
            resumed.fit()
        assert names(folder) == names(tmp_path / "whole"), batch
        assert resumed.state.callbacks[0].state_dict()["best"] == whole.state.callbacks[0].state_dict()["best"]
