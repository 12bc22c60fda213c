"""The order as a picture, in Mermaid and in SVG."""

import itertools
import xml.etree.ElementTree as ET

import pytest

from engine_core import Algorithm, AlgorithmMetadata, passes
from engine_core.errors import ArgumentError
from engine_core.explain import explain_algorithms
from engine_core.passes import Explained
from engine_core_report.pictures import to_mermaid, to_svg


class Quiet(Algorithm):
    metadata = AlgorithmMetadata(events=("after_loss",))

    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        raise AssertionError


class A(Quiet):
    pass


class B(Quiet):
    metadata = AlgorithmMetadata(events=("after_loss", "fit_end"))


class C(Quiet):
    pass


def test_mermaid_has_a_box_for_each_event_and_the_reasons_on_the_arrows():
    assert to_mermaid(explain_algorithms([A(), B()])).splitlines() == [
        "flowchart TB",
        '  subgraph e1["after_loss"]',
        '    e1a1["1. B"]',
        '    e1a2["2. A"]',
        '    e1a1 -->|"FILO, the list is reversed on AFTER events"| e1a2',
        "  end",
        '  subgraph e2["fit_end"]',
        '    e2a1["1. B"]',
        "  end",
    ]


def test_mermaid_shows_where_an_algorithm_comes_from_and_quotes_what_it_would_read():
    order = [
        Explained("end", "end", "before B<T>: ...", "some-plugin", "1.0"),
        Explained("B<T>", "b", 'after end: pass "#1" of x'),
    ]
    assert to_mermaid({"init": order}).splitlines()[2:5] == [
        '    e1a1["1. end<br/>some-plugin 1.0"]',
        '    e1a2["2. B#lt;T#gt;"]',
        '    e1a1 -->|"pass #quot;#35;1#quot; of x"| e1a2',
    ]


def texts(svg):
    return [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def boxes(svg):
    """Return the row and the place of each name, and whether its border is red."""
    root = ET.fromstring(svg)
    shapes = [node for node in root if node.tag.endswith("rect")][1:]
    names = [node.text for node in root if node.tag.endswith("text") and node.get("text-anchor") == "middle"]
    rows = {}
    for shape, name in zip(shapes, names, strict=True):
        rows.setdefault(int(shape.get("y")), []).append(name + ("!" if shape.get("stroke") == "#c0392b" else ""))
    return list(rows.values())


def b_last(algorithms, event):
    return passes.sort_to_back(algorithms, B)


def test_an_svg_shows_what_each_pass_made_of_the_list_and_what_moved():
    svg = to_svg(explain_algorithms([A(), B(), C()], b_last), "after_loss")
    assert boxes(svg) == [["A", "B", "C"], ["C", "B", "A"], ["C", "A", "B!"]]
    assert [text for text in texts(svg) if len(text) > 1] == [
        "Running order at after_loss",
        *("your list", "as you wrote it"),
        *("set_filo_order", "engine-core"),
        *("b_last", "your own"),
    ]


def test_an_svg_says_in_words_what_it_shows():
    root = ET.fromstring(to_svg(explain_algorithms([A(), B()], b_last), "after_loss"))
    assert [root[0].text, root[1].text] == [
        "How the order at after_loss comes about",
        "Your list gives A, B, then set_filo_order gives B, A, then b_last gives A, B.",
    ]


def test_all_boxes_lie_inside_the_picture_and_none_overlap():
    longer = type("A" * 60, (A,), {})
    root = ET.fromstring(to_svg(explain_algorithms([longer(), B(), C()], b_last), "after_loss"))
    frame, *shapes = [node for node in root if node.tag.endswith("rect")]
    spans = [tuple(int(shape.get(key)) for key in ("y", "x", "width")) for shape in shapes]
    assert max(x + width for _, x, width in spans) <= int(frame.get("width"))
    assert all(y != other or x + width < right for (y, x, width), (other, right, _) in itertools.pairwise(spans))


def test_an_event_without_algorithms_has_no_picture():
    with pytest.raises(ArgumentError, match=r"^there is no order at 'init', only at: after_loss, fit_end$"):
        to_svg(explain_algorithms([A(), B()]), "init")


def test_without_algorithms_there_is_a_picture_of_no_event():
    with pytest.raises(ArgumentError, match=r"^there is no order at 'nosuch', only at: no event$"):
        to_svg(explain_algorithms([]), "nosuch")
