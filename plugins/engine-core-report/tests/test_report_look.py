"""What a report's page is drawn with: the vendored library, unchanged, and colours that everybody can tell apart."""

import hashlib
import itertools
import json
import re
from importlib.resources import files

import pytest

REPORT = files("engine_core_report")
STYLE = (REPORT / "report.css").read_text(encoding="utf-8")
TEMPLATE = (REPORT / "template.html").read_text(encoding="utf-8")
SCRIPT = (REPORT / "report.js").read_text(encoding="utf-8")

# Machado, Oliveira and Fernandes 2009, severity 1, for linear RGB.
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.072175), (0.0193339, 0.119192, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)


def palette(scheme):
    """Return the colours by name of the light or the dark scheme."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w+);", blocks[("light", "dark").index(scheme)]))
    assert len(blocks) == 2
    return {name: f"#{''.join(2 * c for c in code[1:])}" if len(code) == 4 else code for name, code in colours.items()}


def linear(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def contrast(a, b):
    light, dark = sorted((times(TO_XYZ, linear(colour))[1] for colour in (a, b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(colour, sight):
    seen = [min(1.0, max(0.0, part)) for part in times(SIGHT[sight], linear(colour))]
    scaled = [part / white for part, white in zip(times(TO_XYZ, seen), WHITE, strict=True)]
    x, y, z = (part ** (1 / 3) if part > 216 / 24389 else (24389 / 27 * part + 16) / 116 for part in scaled)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(a, b, sight):
    return sum((p - q) ** 2 for p, q in zip(lab(a, sight), lab(b, sight), strict=True)) ** 0.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_line_has_a_contrast_of_3_to_its_ground(scheme):
    colours = palette(scheme)
    contrasts = {name: contrast(colours[name], colours["panel"]) for name in (f"c{n}" for n in range(6))}
    assert {name: value for name, value in contrasts.items() if value < 3} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_a_contrast_of_4_5(scheme):
    colours = palette(scheme)
    pairs = itertools.product(("fg", "soft", "link", "ok", "warn"), ("bg", "panel"))
    contrasts = {(text, ground): contrast(colours[text], colours[ground]) for text, ground in pairs}
    assert {pair: value for pair, value in contrasts.items() if value < 4.5} == {}


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_any_two_lines_are_told_apart_with_any_sight(scheme, sight):
    lines = [palette(scheme)[f"c{n}"] for n in range(6)]
    near = {pair: distance(*pair, sight) for pair in itertools.combinations(lines, 2)}
    assert {pair: round(far, 1) for pair, far in near.items() if far < 25} == {}


def test_the_distance_is_cie76():
    assert distance("#ffffff", "#000000", "normal") == pytest.approx(100, abs=0.01)
    assert distance("#ff0000", "#00ff00", "normal") == pytest.approx(170.6, abs=0.1)


def test_the_library_is_the_one_that_was_published():
    vendor = REPORT / "vendor"
    told = json.loads((vendor / "uplot.json").read_text(encoding="utf-8"))
    there = {entry.name for entry in vendor.iterdir()} - {"uplot.json"}
    assert {name: hashlib.sha256((vendor / name).read_bytes()).hexdigest() for name in there} == told["sha256"]
    assert f"(v{told['version']})" in (vendor / "uPlot.iife.min.js").read_text(encoding="utf-8")[:80]
    assert "MIT" in (vendor / "LICENSE").read_text(encoding="utf-8")


def test_nothing_on_the_page_is_loaded_or_compiled_from_text():
    for text in (SCRIPT, (REPORT / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8")):
        assert not re.search(r"\beval\(|new Function|\bFunction\(|innerHTML|import\(|fetch\(|XMLHttpRequest", text)
    assert not re.search(r"(src|href)=\"(?!#|\{\{|data:)", TEMPLATE)
    assert "|safe" not in TEMPLATE
    assert "url(" not in STYLE.replace("url(#hatch)", "")
