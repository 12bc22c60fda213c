"""Nothing that a run names or logs can run in its report's page, and no foreign file is overwritten by one."""

import base64
import hashlib
import json
import re
import sys

import pytest

from engine_core.errors import ArgumentError
from engine_core_report import read_run, render, write_report

from .left_runs import MANIFEST, RESULTS, TIMING, append, write_run
from .report_pages import page_of

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<!--",
    "{{ 7 * 7 }}{% raw %}",
    "__proto__",
    "\u2028\u202e\x1b[31m\ud800",
    "javascript:alert(1)",
]


def test_the_policy_allows_exactly_the_scripts_and_styles_of_the_page(tmp_path):
    html = render([read_run(write_run(tmp_path / "run"))])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def hashes(tag):
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(b.encode()).digest()).decode()}'" for b in bodies)

    assert rules == {
        "default-src": "'none'",
        "script-src": hashes("script"),
        "style-src": hashes("style"),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert html.count("<script>") == html.count("<style>") == 2
    assert "style=" not in re.sub(r"<(script|style)>.*?</\1>", "", html, flags=re.DOTALL)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_or_value_is_text_wherever_it_comes_from(tmp_path, text):
    place = {"algorithm": text, "name": text, "why": text, "distribution": text, "version": text}
    manifest = {
        **MANIFEST,
        **dict.fromkeys(("run_name", "started", "device", "precision", "config_file"), text),
        "command": ["engine-core", text],
        "versions": {"engine-core": text, text: text},
        "config": {text: {text: [text]}, "eval_data": {text: {}}, "results": {"lower": [text]}},
        "order": {text: [place]},
        "algorithms": [{**{k: v for k, v in place.items() if k != "why"}, "events": [text]}],
        "steps": {text: {"given": [text]}},
        "warnings": [text],
    }
    metrics = [{"step": s, "seconds": s, text: s, f"{text}/a": s, f"train/{text}": s, "text": text} for s in range(3)]
    runs = {f"{text}/{text}": 1, text: 1}
    events = [{"kind": "epoch", "step": 2, "epoch": 1, "seconds": 1, "runs": runs}]
    events += [{"kind": "warning", "step": 2, "epoch": 1, "seconds": 1, "category": text, "message": text}]
    timing = {"schema": 1, "batches": 2, "spans": {f"algorithm/{text}/{text.lower()}": TIMING["spans"]["optimizer"]}}
    results = {**RESULTS, text: text, "algorithms": runs, "best": {text: {"value": 1, "step": text}}}
    written = {"metrics": metrics, "events": events, "timing": timing, "results": results}
    encoding = sys.getfilesystemencoding()
    names = [re.sub("/", "-", text.encode(encoding, "ignore").decode(encoding)), "calm"]  # a folder's are of the system
    folders = [
        write_run(tmp_path / name, manifest={**manifest, "seed": seed}, **written) for seed, name in enumerate(names)
    ]
    calm = write_run(tmp_path / "like it", manifest={**MANIFEST, "config": {}})
    page, plain = page_of(*folders, calm), page_of(calm)
    write_report([read_run(folder) for folder in folders], tmp_path / "page.html")
    assert len(page.scripts) == 3
    assert page.scripts[1:] == plain.scripts[1:]
    known = {tag for tag, _ in plain.elements} | {"h3", "img", "ul", "li", "svg", "rect", "b"}
    assert {tag for tag, _ in page.elements} <= known
    attributes = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in attributes if name.startswith("on")}
    sources = [a["src"] for tag, a in page.elements if tag == "img"]
    assert sources
    assert all(re.fullmatch(r"data:image/svg\+xml;base64,[\w+/=]+", source) for source in sources)
    assert not set("\u2028\u202e\x1b") & set("".join(page.texts))
    assert any(names[0] in line["name"] for chart in page.data["charts"] for line in chart["lines"])


def test_a_foreign_file_is_not_overwritten_unless_forced(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    path = tmp_path / "notes.html"
    path.write_text("mine")
    with pytest.raises(ArgumentError, match="is not a report"):
        write_report([run], path)
    assert path.read_text() == "mine"
    write_report([run], path, force=True)
    write_report([run], path)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


def test_a_link_is_not_written_through(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    write_report([run], tmp_path / "real.html")
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    with pytest.raises(ArgumentError, match="is not a report"):
        write_report([run], tmp_path / "link.html")


@pytest.mark.parametrize(
    "line", [{"step": -(10**308), "seconds": 1, "train/loss": 1}, {"step": 5, "seconds": -1e300, "train/loss": 1}]
)
def test_a_step_or_time_that_can_not_be_is_a_damaged_line(tmp_path, line):
    folder = write_run(tmp_path / "run")
    append(folder / "metrics.jsonl", f"{json.dumps(line)}\n")
    assert "1 line of metrics.jsonl can't be read" in page_of(folder).text


def test_names_that_look_alike_once_they_are_escaped_have_a_chart_each(tmp_path):
    names = ["own/x\u202e", "own/x\\u202e"]
    lines = [{"step": step, "seconds": step, **dict.fromkeys(names, step)} for step in range(3)]
    page = page_of(write_run(tmp_path / "run", metrics=lines))
    keys = [attributes["data-name"] for tag, attributes in page.elements if tag == "figure"]
    assert len(set(keys)) == len(keys) == 2
