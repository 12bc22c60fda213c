"""Runs as they lie on a disk, written by hand: whole, half and hostile ones."""

import json
from pathlib import Path

MANIFEST = {
    "schema": 1,
    "run_name": "first",
    "seed": 1,
    "started": "2020-01-01T00:00:00+0000",
    "command": ["engine-core", "train", "run.yaml"],
    "device": "cpu",
    "precision": "fp32",
    "versions": {"python": "3.11.7", "engine-core": "0.1.0"},
    "config_file": "run.yaml",
    "config": {"eval_data": {"eval": {"target": "own:loader"}}, "trainer": {"seed": 1}},
    "algorithms": [],
    "passes": [],
    "order": {"init": [{"algorithm": "A", "name": "a", "why": "runs alone"}]},
    "steps": {},
}
RESULTS = {
    "train/loss": 0.5,
    "eval/loss": 0.25,
    "epochs": 2,
    "batches": 4,
    "samples": 16,
    "seconds": 1.5,
    "samples_per_second": 10.5,
    "algorithms": {"A/INIT": 1, "A/BEFORE_FORWARD": 3},
    "best": {"eval/loss": {"value": 0.125, "step": 2, "epoch": 1}},
}
METRICS = [
    {"step": 0, "seconds": 1.0, "train/loss": 2.0, "train/lr/0": 0.5},
    {"step": 1, "seconds": 2.0, "train/loss": 1.0, "train/lr/0": 0.5},
    {"step": 2, "seconds": 2.5, "eval/loss": 0.125},
    {"step": 2, "seconds": 3.0, "train/loss": 0.75, "train/lr/0": 0.25},
    {"step": 3, "seconds": 4.0, "train/loss": 0.5, "train/lr/0": 0.25},
    {"step": 4, "seconds": 4.5, "eval/loss": 0.25},
]
EVENTS = [
    {"kind": "start", "step": 0, "epoch": 0, "seconds": 0.5},
    {"kind": "epoch", "step": 2, "epoch": 1, "seconds": 2.5, "runs": {"A/BEFORE_FORWARD": 2}},
    {"kind": "epoch", "step": 4, "epoch": 2, "seconds": 4.5, "runs": {"A/BEFORE_FORWARD": 1}},
    {"kind": "end", "step": 4, "epoch": 2, "seconds": 5.0, "status": "finished"},
]
SPANS = {
    "event/dataloader": (4, 1.0),
    "event/forward": (4, 2.0),
    "event/loss": (4, 0.5),
    "event/backward": (4, 3.0),
    "optimizer": (4, 0.5),
    "algorithm/A/before_forward": (3, 1.5),
    "callback/Diary/batch_end": (4, 0.25),
    "event/eval_forward": (2, 0.75),
    "event/fit": (1, 0.5),
}
TIMING = {
    "schema": 1,
    "batches": 4,
    "resumed_at": None,
    "spans": {n: {"count": count, "seconds": s, "own_seconds": s} for n, (count, s) in SPANS.items()},
}


def write_run(folder, *, manifest=MANIFEST, metrics=METRICS, events=EVENTS, results=RESULTS, timing=TIMING):
    """Write a run; what is None is left out."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    values = [{"kind": "values", **line} for line in metrics or ()]
    told = list(events or ())
    if results is not None and timing is not None:
        results = {**results, "timing": timing}
    elif timing is not None:
        told.insert(-1, {"kind": "timing", "step": 0, "epoch": 0, "seconds": 0.5, **timing})
    for name, content in (("manifest.json", manifest), ("results.json", results)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    if values or told:
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*values, *told]))
    return folder


def append(file, text):
    with Path(file).open("a") as opened:
        opened.write(text)
