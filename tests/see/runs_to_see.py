"""Runs that have something in each section of a page."""

import struct
import zlib

from left_runs import EVENTS, MANIFEST, RESULTS, write_run

from engine_core_report import read_run, write_report

STEPS = 60
WHY = "declared by 'mixup' of augmentation-plugin: before 'label_smoothing'"
ORDER = {
    "before_forward": [
        {"algorithm": "MixUp", "name": "mixup", "distribution": "augmentation-plugin", "version": "0.1.0", "why": WHY},
        {"algorithm": "LabelSmoothing", "name": "label_smoothing", "why": "after it"},
    ]
}
LONG = "a_module_with_a_name/that_is_much_longer_than_any_column_of_a_narrow_screen/and_has_no_space_to_break_at"


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="30"><script>window.hacked=1</script>'
    '<rect width="90" height="30"/></svg>'
)


def values(steps=range(STEPS)):
    """Return lines of metrics.jsonl with charts of training, evaluation and plugins."""
    lines = []
    for step in steps:
        line = {"step": step, "seconds": step / 4, "train/loss": 2 / (1 + step), "train/lr/0": 0.1 - step / 1000}
        line |= {"train/lr/1": 0.2 - step / 1000, "selective_backprop/kept": (step * 7) % 5, LONG: step % 3 - 1}
        if step % 20 == 19:
            line["eval/loss"] = 3 / (1 + step)
        if step == 7:
            line["selective_backprop/kept"] = None
        lines.append(line)
    return lines


def png(width=40, height=20):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + bytes([50, 90, 200]) * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def full_run(folder, **changes):
    """Write a run that has all sections, a resume and a warning."""
    events = [
        {"kind": "start", "step": 0, "epoch": 0, "seconds": 0.0},
        {"kind": "progress", "step": 30, "epoch": 0, "seconds": 7.5, "runs": {"MixUp/BEFORE_FORWARD": 25}},
        {"kind": "resume", "step": 30, "epoch": 0, "seconds": 7.5},
        {"kind": "warning", "step": 31, "epoch": 0, "seconds": 7.6, "category": "UserWarning", "message": "odd"},
        {"kind": "epoch", "step": STEPS, "epoch": 1, "seconds": 15.0, "runs": {"MixUp/BEFORE_FORWARD": 5}},
        {**EVENTS[-1], "step": STEPS, "seconds": 15.0},
    ]
    results = {**RESULTS, "batches": STEPS, "algorithms": {"MixUp/BEFORE_FORWARD": 30}}
    parts = {"manifest": {**MANIFEST, "order": ORDER}, "metrics": values(), "events": events, "results": results}
    run = write_run(folder, **{**parts, **changes})
    files = run / "files" / "40"
    files.mkdir(parents=True)
    (files / "confusion.png").write_bytes(png())
    (files / "tree.svg").write_text(SVG)
    (files / "summary.txt").write_text("module   shape\nconv1    (8, 3)\n")
    saved = run / "checkpoints" / "ep1-ba60"
    saved.mkdir(parents=True)
    (saved / "manifest.json").write_text("{}")
    return run


def page_at(folder, *others):
    """Write the page of runs, and return its address."""
    path = folder / "report.html"
    write_report([read_run(run) for run in (folder, *others)], path)
    return path.as_uri()
