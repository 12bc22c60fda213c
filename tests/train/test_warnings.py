"""A warning points at the user's line, which on the command line is none."""

import pytest
from click.testing import CliRunner

from engine_core import Callback
from engine_core.cli import main
from engine_core.errors import AuditWarning, DurationWarning, HookNameWarning, NonFiniteLossWarning
from engine_core_author.audit_callback import Audit

from .parts import acting, trainer


def double(event, state):
    state.loss = state.loss * 2


class Misspelt(Callback):
    def batch_end(self, state, logger): ...

    def epoch_ends(self, state, logger): ...


def nan(outputs, targets):
    return outputs.sum() * float("nan")


@pytest.mark.parametrize(
    ("category", "settings"),
    [
        (HookNameWarning, {"callbacks": [Misspelt()]}),
        (AuditWarning, {"algorithms": [acting(double, "after_loss")], "callbacks": [Audit()]}),
        (NonFiniteLossWarning, {"loss_fn": nan}),
        (DurationWarning, {}),
    ],
)
def test_a_warning_of_the_core_points_at_the_line_that_called_it(category, settings):
    def use():
        with trainer(**settings) as made:
            made.fit()
            if category is DurationWarning:
                made.fit("1ba")

    with pytest.warns(category) as caught:
        use()
    places = {warning.filename.rpartition("/")[2] for warning in caught}
    assert places <= {"test_warnings.py", "parts.py"}


CONFIG = """
model: {target: "torch.nn:Linear", args: {in_features: 4, out_features: 3}}
data: {target: "told:data"}
loss: {target: "told:nan"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
callbacks:
  - target: "told:Nags"
trainer: {max_duration: 1ep, device: cpu}
"""
MODULE = """
import warnings

import torch
from engine_core import Callback

def data():
    return [(torch.randn(8, 4), torch.randint(3, (8,)))]

def nan(outputs, targets):
    return outputs.sum() * float("nan")

class Nags(Callback):
    def __init__(self):
        warnings.warn("old", stacklevel=2)

    def batch_end(self, state, logger): ...
"""


@pytest.mark.filterwarnings("default")
def test_on_the_command_line_no_line_is_shown_but_that_of_the_config_which_is_the_cause(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "told.py").write_text(MODULE)
    (tmp_path / "c.yaml").write_text(CONFIG)
    quiet = ["train", "c.yaml", "--out", "out", "--quiet"]
    done = CliRunner().invoke(main, quiet, prog_name="engine-core")
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert lines[0] == "warning: c.yaml:7: old"
    assert lines[1].startswith("warning: the training loss is nan at batch 0 (epoch 0); training continues.")
    assert len(lines) == 2
