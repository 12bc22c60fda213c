"""What a run shows: header and rows as plain lines, word for word."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from engine_core import Engine, Logger, State
from engine_core.callbacks import progress, reporter
from engine_core.callbacks.progress import ProgressBar
from engine_core.callbacks.reporter import header_lines, header_of
from engine_core.errors import ArgumentError
from engine_core.ranks import Ranks

from .parts import linear, trainer

HEADER = """\
model       Linear
parameters  15 trainable, 15 in all
device      cpu
precision   fp32
data        ? samples, 2 batches
algorithms  none
optimizer   SGD (lr 0.1)
duration    4 steps (2ep)
seed        1
folder      none
"""


@pytest.fixture(autouse=True)
def _twelve_seconds(monkeypatch):
    """Stop the clock that rows show."""
    now_s = iter([0.0])  # at FIT_START
    monkeypatch.setattr(reporter, "time", SimpleNamespace(perf_counter=lambda: next(now_s, 12.0)))


def mean_of_targets(outputs, targets):
    return outputs.sum() * 0 + targets.mean()


def batch(size, loss):
    """Return a batch of this size and loss."""
    return torch.ones(size, 4), torch.full((size,), float(loss))


class Falling:
    """A loader of one batch, whose loss is the next of these values each time."""

    def __init__(self, *losses):
        self.losses = iter(losses)

    def __iter__(self):
        return iter([batch(2, next(self.losses))])

    def __len__(self):
        return 1


def training(**settings):
    """Return a trainer whose loss is the mean of the targets: 2 over the rows of an epoch, 2.5 over its batches."""
    given = {"loss_fn": mean_of_targets, "max_duration": "2ep", "seed": 1, "progress_bar": "lines", **settings}
    return trainer([batch(4, 1), batch(2, 4)], **given)


def shown(capsys):
    """Return what is on stderr; nothing is on stdout, and nothing in it moves a cursor or has a colour."""
    out, err = capsys.readouterr()
    assert (out, "\x1b" in err, "\r" in err) == ("", False, False)
    return err


def rows_of(text):
    return [line for line in text.splitlines() if line.startswith(("epoch", "batch"))]


def test_the_header_says_what_is_known(capsys):
    with training() as made:
        made.fit("1ep")
        made.fit()
    assert shown(capsys) == HEADER


def test_the_header_names_loaders_algorithms_and_folder(capsys, install, tmp_path):
    module = """
        from engine_core import Algorithm

        class Doze(Algorithm):
            match = lambda self, event, state: event == "init"
            apply = lambda self, *arguments: None

        Hostile = type("Red[bold]\\x1b[31m", (Doze,), {})
    """
    install("nap-plugin", {"algorithms": {"doze": "nap_screen:Doze"}}, {"nap_screen": module}, version="1.2")
    nap_screen = importlib.import_module("nap_screen")

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(TensorDataset(*batch(3, 1)))

    def optimizer(parameters):
        return torch.optim.Adam([{"params": [p], "lr": lr} for p, lr in zip(parameters, (0.1, 1e-5), strict=True)])

    sets = {"stream": DataLoader(Stream()), "mine": DataLoader(TensorDataset(*batch(1234, 1)), 1000)}
    own = type("Own", (nap_screen.Hostile,), {"__module__": __name__})
    algorithms = ["doze", own(), nap_screen.Hostile()]
    data = DataLoader(TensorDataset(*batch(1234, 1)), 1000, drop_last=True)
    model = linear().requires_grad_(False)
    model.bias.requires_grad_()
    settings = {"loss_fn": mean_of_targets, "eval_dataloader": sets, "algorithms": algorithms, "seed": 1}
    with trainer(data, model, optimizers=optimizer, max_duration="90sec", progress_bar="lines", **settings) as made:
        made.state.folder = tmp_path / "a\nb"
        made.fit("1ba")
    assert shown(capsys).splitlines()[:12] == [
        "model        Linear",
        "parameters   3 trainable, 15 in all",
        "device       cpu",
        "precision    fp32",
        "data         1,000 samples, 1 batch",
        "eval stream  ? samples, ? batches",
        "eval mine    1,234 samples, 2 batches",
        "algorithms   Doze (nap-plugin 1.2), Own (nap-plugin 1.2), Red[bold]\\x1b[31m (nap-plugin 1.2)",
        "optimizer    Adam (lr 0.1, 1e-05)",
        "duration     ? steps (90sec)",
        "seed         1",
        f"folder       {tmp_path}/a\\nb",
    ]


def test_each_evaluation_of_a_fit_has_one_row_with_a_star_at_what_is_best_so_far(capsys):
    loaders = {"eval": Falling(0.5, 0.5, 0.25), "other": Falling(1, float("nan"), 2)}
    with training(max_duration="5ba", eval_dataloader=loaders) as made:
        made.fit()
    assert rows_of(shown(capsys)) == [
        "epoch 1/3  train/loss 2  eval/loss 0.5*  other/loss 1*  0:12",
        "epoch 2/3  train/loss 2  eval/loss 0.5  other/loss nan  0:12",
        "batch 5/5  train/loss 1  eval/loss 0.25*  other/loss 2  0:12",
    ]


def test_a_resumed_run_says_so_and_its_rows_continue(capsys, tmp_path):
    saver = [("checkpoint_saver", {"folder": tmp_path / "checkpoints", "interval": "1ba"})]
    loaders = {"eval": Falling(1, 0.5, 0.75)}
    with training(max_duration="3ep", eval_dataloader=loaders, callbacks=saver) as made:
        made.fit("3ba")
    again = {"eval": Falling(2, 0.25)}
    with training(max_duration="3ep", eval_dataloader=again, load_path=tmp_path / "checkpoints") as made:
        made.fit()
    lines = shown(capsys).splitlines()
    assert [line for line in lines if line.startswith("duration")] == [
        "duration    6 steps (3ep)",
        "duration    6 steps (3ep), resumed at step 3",
    ]
    assert rows_of("\n".join(lines)) == [
        "epoch 1/3  train/loss 2  eval/loss 1*  0:12",
        "batch 3/6  train/loss 1  eval/loss 0.5*  0:12",
        "epoch 2/3  train/loss 2  eval/loss 2  0:12",  # with batch 3, whose row came after it was saved
        "epoch 3/3  train/loss 2  eval/loss 0.25*  0:12",
    ]


@pytest.mark.parametrize("progress_bar", ["auto", False])
def test_without_a_terminal_nothing_is_shown_unasked(capsys, progress_bar, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with training(progress_bar=progress_bar, eval_dataloader=Falling(1, 2)) as made:
        made.fit()
    assert shown(capsys) == ""


class Loss:
    """A loss that is the number of batches so far."""

    def __init__(self, state):
        self.is_cuda, self.item = False, lambda: float(state.timestamp.batch)


def test_a_line_of_progress_comes_every_30_seconds_at_the_most(capsys, monkeypatch):
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.s))
    state = State(callbacks=[ProgressBar(show="lines")], max_duration="10ba", dataloader_label="eval")
    state.loss = Loss(state)
    with Engine(state, Logger()) as engine:
        engine.run_event("fit_start")
        capsys.readouterr()
        for _ in range(7):
            state.timestamp = state.timestamp.to_next_batch(samples=10_000, duration_s=5.0)
            engine.run_event("batch_end")
            now.s += 5
            state.eval_timestamp = state.timestamp
            engine.run_event("eval_batch_end")
            now.s += 5
        engine.run_event("fit_end")
    assert shown(capsys).splitlines() == [
        "batch 4/10  40%  loss 2.525  2,000 samples/s  0:45 left",
        "batch 7/10  70%  loss 4.081  2,000 samples/s  0:26 left",
    ]


def test_training_survives_a_stderr_that_takes_nothing(monkeypatch):
    def gone(*text):
        raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: False, write=gone, flush=gone))
    with training(eval_dataloader=Falling(1, 2)) as made:
        made.fit()
    assert made.state.timestamp.batch == 4


def test_a_wrong_way_to_show_is_refused():
    for show in (False, "bar", None, 1):
        with pytest.raises(ArgumentError, match="show is 'auto', 'lines' or True, not "):
            ProgressBar(show=show)


@pytest.mark.parametrize(
    ("loader", "settings", "said"),
    [
        (DataLoader([0], batch_size=32), {}, "ranks       4 (ddp): global batch 32 = 8 rows on each"),
        (DataLoader([0], batch_size=33), {}, "ranks       4 (ddp): global batch 33 = 9, 8, 8 and 8 rows"),
        (DataLoader([0], batch_size=32), {"is_sharded": True, "is_local": True}, "ranks       4 (fsdp)"),
        ([], {}, "ranks       4 (ddp)"),
    ],
)
def test_the_header_says_how_many_rows_of_a_batch_each_rank_gets_and_of_a_lazy_model_no_size(loader, settings, said):
    ranks = Ranks()
    vars(ranks).update(settings, size=4)
    lines = header_lines(header_of(State(ranks=ranks, train_dataloader=loader)))
    assert [line for line in lines if line.startswith("ranks")] == [said]
    assert header_of(State(model=nn.LazyLinear(3)))["parameters"] is None


def test_outside_of_a_fit_the_loaders_share_a_row_and_each_other_loader_has_its_own(capsys):
    with training(eval_dataloader={"eval": Falling(3, 2), "more": Falling(5, 4)}) as made:
        made.eval()
        made.fit("1ba")
        made.eval({"eval": Falling(1), "third": Falling(7)})
    assert rows_of(shown(capsys)) == [
        "batch 0/4  eval/loss 3*  more/loss 5*  0:00",
        "batch 1/4  train/loss 1  eval/loss 2*  more/loss 4*  0:12",
        "batch 1/4  eval/loss 1  0:12",
        "batch 1/4  third/loss 7  0:12",
    ]
