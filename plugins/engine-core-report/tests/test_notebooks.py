"""What notebooks show of traces, explanations and runs: all of it is escaped, and `repr` stays as it is."""

import html
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, State, Trace, Traces
from engine_core.explain import Explanation, Skipped, explain_algorithms
from engine_core.messages import escaped
from engine_core_report import read_run, reading, render

from .left_runs import MANIFEST, write_run
from .test_report_hostile import HOSTILE


class Quiet(Algorithm):
    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return 3


class Late(Quiet):
    metadata = AlgorithmMetadata(name="late", after=("one",), events=("init",))


class One(Quiet):
    metadata = AlgorithmMetadata(name="one", after=("other",), events=("init",))


class Other(Quiet):
    metadata = AlgorithmMetadata(name="other", after=("one",), events=("init",))


HEADER = ["order", "algorithm", "event", "exit code"]
FRAME = r'<iframe sandbox="allow-scripts" srcdoc="([^"<>]*)" width="100%" height="600" title="([^"<>]*)"></iframe>'
PLACES = ["place", "algorithm", "from", "why"]


def test_traces_are_a_table_in_running_order():
    traces = Engine(State(algorithms=[Quiet(), Quiet()]), Logger()).run_event("before_forward")
    traces["lost"] = Trace("Lost", Event.BEFORE_FORWARD, None, 2, run=False)
    traces["odd"] = Trace("Odd", Event.BEFORE_FORWARD, None, 3, run=True)
    assert Tables(traces._repr_html_()).rows == [
        HEADER,
        ["0", "Quiet", "BEFORE_FORWARD", "3"],
        ["1", "Quiet-2", "BEFORE_FORWARD", "3"],
        ["2", "Lost", "BEFORE_FORWARD", "not reached"],
        ["3", "Odd", "BEFORE_FORWARD", "None"],
    ]
    assert repr(traces).startswith("Traces({'Quiet/BEFORE_FORWARD': Trace(")


def test_an_event_at_which_nothing_ran_says_so():
    assert Traces()._repr_html_() == "<p>nothing ran</p>"


def test_an_explanation_is_a_table_for_each_event_with_places_and_reasons():
    explanation = explain_algorithms([Late(), One(), Quiet()])
    whys = [explained.why for explained in explanation["init"]]
    rows = Tables(explanation._repr_html_()).rows
    start = rows.index(["init"])
    assert rows[start + 1 : start + 5] == [
        PLACES,
        ["1", "One", "you", whys[0]],
        ["2", "Late", "you", whys[1]],
        ["3", "Quiet", "you", whys[2]],
    ]
    assert [row[0] for row in rows if len(row) == 1 and row != ["skipped"]] == [*explanation]
    assert repr(explanation).startswith("Explanation(algorithms=(AlgorithmRecord(")


def test_an_explanation_without_an_order_says_why_and_lists_problems_warnings_and_what_is_skipped():
    explanation = explain_algorithms([One(), Other()])
    why = f"no order: {explanation.unordered['init'].why}"
    shown = explanation._repr_html_()
    assert Tables(shown).rows == [["init"], PLACES, ["1", "One", "you", why], ["2", "Other", "you", why]]
    assert explanation.problems
    assert all(f"<p>problem: {html.escape(problem)}</p>" in shown for problem in explanation.problems)
    told = Explanation(warnings=("careful",), skipped=(Skipped("a pass", "no effect", ("init",)),))._repr_html_()
    assert Tables(told).rows == [["skipped"], ["what", "why"], ["a pass", "no effect"]]
    assert told.endswith("<p>warning: careful</p>")
    assert Explanation()._repr_html_() == "<p>no algorithm at any event</p>"


def test_a_run_is_its_page_in_a_frame_of_its_own(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    frame = re.fullmatch(FRAME, run._repr_html_())
    assert frame[2] == "first"
    assert html.unescape(frame[1]) == render([run])
    assert isinstance(run, reading.RunData)
    assert repr(run) == repr(reading.RunReader(tmp_path / "run").read())
    assert repr(run).startswith("RunData(folder=")


@pytest.mark.parametrize("text", [HOSTILE[1], HOSTILE[-2]])
def test_a_hostile_name_is_text(tmp_path, text):
    class Odd:
        def __repr__(self):
            return text

    place = {"algorithm": text, "name": text, "why": text, "distribution": text, "version": text}
    manifest = {
        **MANIFEST,
        "run_name": text,
        "order": {text: [place]},
        "warnings": [text],
        "steps": {text: {"given": [text]}},
    }
    manifest["algorithms"] = [{**{k: v for k, v in place.items() if k != "why"}, "events": [text]}]
    run = read_run(write_run(tmp_path / "run", manifest=manifest))
    traces = Traces(a=Trace(text, Event.INIT, Odd(), 0, run=True))
    for shown in (traces._repr_html_(), run.manifest.explanation()._repr_html_()):
        assert Tables(shown).tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
        assert all(character.isprintable() or character == "\n" for character in shown)
        assert escaped(text) in Tables(shown).text
    frame = re.fullmatch(FRAME, run._repr_html_())
    assert html.unescape(frame[2]) == escaped(text)


def test_the_class_of_traces_imports_nothing_for_notebooks():
    program = "import sys; import engine_core.logger; print(sorted({'html'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Tables(HTMLParser):
    """The cells of each row, and the tags."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags, self._is_cell = [], set(), False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not attrs
        if tag in ("tr", "caption"):
            self.rows.append([])
        self._is_cell = tag in ("td", "th", "caption")
        if self._is_cell:
            self.rows[-1].append("")

    @property
    def text(self):
        return "".join("".join(row) for row in self.rows)

    def handle_endtag(self, tag):
        self._is_cell = False

    def handle_data(self, data):
        if self._is_cell:
            self.rows[-1][-1] += data
