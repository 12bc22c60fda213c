"""A folder with the config of a tiny run, and what a study of it is written with."""

import shutil
import textwrap
from pathlib import Path

import pytest

BASE = """\
model: {target: "torch.nn:Linear", args: {in_features: 4, out_features: 2}}
data: {target: "study_parts:make_loader", args: {split: train}}
eval_data:
  val: {target: "study_parts:make_loader", args: {split: val}}
  test: {target: "study_parts:make_loader", args: {split: test}}
loss: {target: "torch.nn.functional:cross_entropy"}
metrics: {accuracy: {target: "study_parts:Accuracy"}}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.5}}
trainer: {max_duration: 2ep, device: cpu}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return an empty folder, the current one, with `run.yaml` and the module that it names."""
    (tmp_path / "run.yaml").write_text(BASE)
    shutil.copy(Path(__file__).with_name("study_parts.py"), tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(here):
    """Return a function that writes the file of a study of `run.yaml`, and gives its path."""

    def write(text, name="study.yaml"):
        (here / name).write_text("base: run.yaml\n" + textwrap.dedent(text))
        return here / name

    return write
