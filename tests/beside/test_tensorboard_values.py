"""What TensorBoard shows of a run, read back by its own reader."""

import math
import struct
import zlib

import numpy as np
import pytest
import torch
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from engine_core import Callback, Engine, Logger, State
from engine_core.errors import DestinationWarning
from engine_core_tensorboard import TensorBoard

from .tracker_runs import expected, fit, in_tensorboard, read_tensorboard, same_values, trainer


def logged(folder, *metrics, step=3):
    """Log values between FIT_START and FIT_END, and return what TensorBoard reads."""
    with running(TensorBoard(folder)) as (engine, logger):
        for each in metrics:
            logger.log_metrics(each, step)
        engine.run_event("fit_end")
    return in_tensorboard(folder)


class running:  # noqa: N801  read as a word
    """An engine with a tracker, whose fit has started."""

    def __init__(self, *trackers, **state):
        self.logger = Logger(trackers)
        self.engine = Engine(State(run_name="mine", **state), self.logger)

    def __enter__(self):
        for event in ("init", "fit_start"):
            self.engine.run_event(event)
        return self.engine, self.logger

    def __exit__(self, *_):
        self.engine.close()


def png(width=3, height=2):
    """Return a grey picture."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + bytes(range(width)) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def test_numbers_are_logged_and_tensors_of_one_element_are_numbers(tmp_path):
    values = {"a": 1, "b": torch.tensor([[0.5]]), "c": np.float64(2), "d": True}
    others = {"e": "text", "f": None, "g": torch.zeros(2), "h": [], "i": {"x": 1}}
    assert sorted(logged(tmp_path, values, others)) == [("a", 3, 1.0), ("b", 3, 0.5), ("c", 3, 2.0), ("d", 3, 1.0)]


def test_what_is_not_finite_is_shown_as_it_is(tmp_path):
    (_, _, nan), (_, _, inf) = logged(tmp_path, {"a": math.nan, "b": math.inf})
    assert math.isnan(nan) and inf == math.inf


def test_any_name_and_any_number_can_be_logged(tmp_path):
    names = ["", "../../x", "a\n\0b", "\udc80", "<b>", "é" * 400, "a" * 100_000]
    found = logged(tmp_path, dict.fromkeys(names, 1.0), {"big": 2**80, "small": -1e300})
    assert {name for name, _, _ in found} == {*names, "big", "small"} - {"\udc80"} | {"?"}


def test_a_number_or_a_step_that_no_float_or_integer_holds_spoils_nothing_else(tmp_path):
    with running(TensorBoard(tmp_path)) as (_, logger):
        logger.log_metrics({"good": 1.0}, 1)
        for value, step, said in ((10**400, 1, "int too large"), (1.0, 2**63, "step=9"), (1.0, 1.5, "whole number")):
            with pytest.warns(DestinationWarning, match=said):
                logger.log_metrics({"bad": value}, step)
            logger.log_metrics({"good": 2.0}, 2)
    assert {name for name, _, _ in in_tensorboard(tmp_path)} == {"good"}


def test_the_hyperparameters_are_there(tmp_path):
    given = {"lr": 0.1, "seed": 2**62, "name": "\udc80", "none": None, "algorithms": ["EMA"], "is": True, "rows": 3}
    tracker = TensorBoard(tmp_path)
    logger = Logger([tracker])
    engine = Engine(State(), logger)
    engine.run_event("init")
    logger.log_hyperparameters(given)
    engine.run_event("fit_start")
    engine.close()
    files = read_tensorboard(tmp_path)
    content = files.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    found = HParamsPluginData.FromString(content).session_start_info.hparams
    assert {name: value.number_value or value.string_value for name, value in found.items()} == {
        "lr": 0.1,
        "seed": str(2**62),
        "name": "?",
        "algorithms": "['EMA']",
        "is": "True",
        "rows": 3,
    }


def test_the_order_with_its_reasons_is_there_as_text(tmp_path):
    fit(TensorBoard(tmp_path), None)
    files = read_tensorboard(tmp_path)
    texts = {name: files.Tensors(name)[0].tensor_proto.string_val[0].decode() for name in files.Tags()["tensors"]}
    assert texts == {
        "order/after_dataloader/text_summary": (
            "1. Other: before Listed: FILO, the list is reversed on AFTER events\n"
            "2. Listed: after Other: FILO, the list is reversed on AFTER events"
        ),
        "order/after_loss/text_summary": (
            "1. Other: before Listed: FILO, the list is reversed on AFTER events\n"
            "2. Listed: after Other: FILO, the list is reversed on AFTER events"
        ),
    }


def test_files_are_images_and_text(tmp_path):
    class Logs(Callback):
        def fit_start(self, state, logger):
            logger.log_file("early.txt", "before the place is open")

        def epoch_end(self, state, logger):
            logger.log_file("picture.png", png())
            logger.log_file("table.json", b'{"a": 1}\n{"b": "\xff"}')
            logger.log_file("drawing.svg", "<svg><script>x</script></svg>")

    fit(TensorBoard(tmp_path), None, Logs(), max_duration="1ep")
    files = read_tensorboard(tmp_path)
    (image,) = files.Images("picture.png")
    assert (image.step, image.width, image.height, image.encoded_image_string) == (3, 3, 2, png())
    texts = {name: files.Tensors(f"{name}/text_summary")[0] for name in ("early.txt", "table.json", "drawing.svg")}
    shown = {name: (text.step, text.tensor_proto.string_val[0].decode()) for name, text in texts.items()}
    assert shown == {
        "early.txt": (0, "    before the place is open"),
        "table.json": (3, '    {"a": 1}\n    {"b": "\N{REPLACEMENT CHARACTER}"}'),
        "drawing.svg": (3, "    <svg><script>x</script></svg>"),
    }


def test_what_calls_itself_a_png_and_is_none_is_left_out_and_told(tmp_path):
    with running(TensorBoard(tmp_path)) as (_, logger), pytest.warns(DestinationWarning, match="'a.png' is not a PNG"):
        logger.log_file("a.png", b"GIF89a")


def test_at_the_end_of_a_fit_all_is_there(tmp_path):
    with trainer(TensorBoard(tmp_path), None) as made:
        made.fit()
        assert same_values(in_tensorboard(tmp_path), expected())


def test_values_from_before_the_fit_are_there(tmp_path):
    with trainer(TensorBoard(tmp_path), None) as made:
        made.eval()
        made.fit()
    assert [step for name, step, _ in in_tensorboard(tmp_path) if name == "eval/loss"] == [0, 3, 6, 9]
