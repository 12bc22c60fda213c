"""Studies as they lie on a disk, written by hand."""

import copy
import json
from pathlib import Path

SEEDS, LENGTHS = (0, 1, 2), ("1ep", "2ep")
ARMS = {"plain": 0.0, "mixup": 0.02, "no warmup": -0.01}
WORDS = {"gains": "gains 0.02 (0.01 to 0.03)", "loses": "loses 0.01 (0.00 to 0.02)"}
NOISE = (-0.005, 0.005, 0.0)
"""What the seeds add to the difference of an arm."""


def difference(mean):
    """Return what a study says of a difference that has an interval of 0.01 to both sides."""
    verdict = "gains" if mean > 0 else "loses"
    return {
        "verdict": verdict,
        "n": 3,
        "without_arm": [],
        "mean": mean,
        "low": mean - 0.01,
        "high": mean + 0.01,
        "p": 0.001,
        "p_corrected": 0.002,
        "arms": 2,
        "words": WORDS[verdict],
    }


def rung(number, gain):
    values = {"test/accuracy": 0.8 + 0.1 * number + gain}
    return {
        "length": LENGTHS[number],
        "n": 3,
        "values": values,
        "sd": {"test/accuracy": 0.0125},
        "compute": 3000.0 * (number + 1),
        "seconds": 1.5 + number,
    }


def arm(name, gain):
    by_seed = {str(seed): 0.9 + gain + noise * bool(gain) for seed, noise in zip(SEEDS, NOISE, strict=True)}
    ratio = {"median": 1.25, "low": 1.0, "high": 1.5, "n": 3, "adjacent": True} if gain else None
    found = {"n": 3, "left_out": 0, "mean": 0.9 + gain, "sd": 0.005, "by_seed": by_seed}
    return {
        "name": name,
        "algorithms": ["ema", name],
        "settings_tried": 3,
        "setting": "optimizer.args.lr=0.1",
        "values": {"test/accuracy": {**found, "difference": difference(gain) if gain else None}},
        "cost": {"seconds": 2.5, "samples": 2000.0, "tokens": 0.0, "batches": 20.0, "ratio": ratio},
        "ladder": [rung(number, gain) for number in range(len(LENGTHS))],
        "to_target": {"test/accuracy": {"target": 0.85, "compute": {"cost": 4242.6, "bound": ""}, "seconds": None}},
    }


def run(name, length, seed):
    return {
        "name": f"{name}, {length}, seed {seed}",
        "length": length,
        "seed": seed,
        "folder": f"runs/{name.replace(' ', '-')}/{length}/seed-{seed}",
        "status": "finished",
        "error": "",
        "values": {"test/accuracy": 0.875},
        "seconds": 2.5,
    }


STUDY = {
    "schema": 1,
    "written": "2020-01-02T03:04:05+0000",
    "base": "run.yaml",
    "baseline": "plain",
    "seeds": list(SEEDS),
    "lengths": list(LENGTHS),
    "report": ["test/accuracy"],
    "choose_by": "val/accuracy",
    "target": {"test/accuracy": 0.85},
    "lower_is_better": {"test/accuracy": False},
    "units": {"seconds": "CPU s", "compute": "row passes"},
    "devices": ["a processor"],
    "versions": {"engine-core": "0.1.0", "torch": "2.4.0"},
    "notes": ["the first batches of each epoch are equal in all arms of a seed"],
    "arms": [arm(name, gain) for name, gain in ARMS.items()],
    "runs": [run(name, length, seed) for seed in SEEDS for length in LENGTHS for name in ARMS],
}


def changed(place, value):
    """Return the study with another value at a place, such as `arms.1.name`."""
    study = copy.deepcopy(STUDY)
    *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    inner = study
    for part in path:
        inner = inner[part]
    inner[last] = value
    return study


def left_study(folder, study=STUDY):
    """Write a study without the folders of its runs."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(study))
    return folder
