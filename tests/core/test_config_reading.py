"""Hostile and damaged config files: a config, or a ConfigError with the line, and at once."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.config import ConfigError, load_config, reading
from engine_core.config.reading import LONGEST, NODES, Place, read_yaml
from engine_core.files import DEEPEST

from .test_config import VALID

HUGE = "x" * 5_000
NINES = "9" * 5_000
BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
MERGES = "".join(
    f"{b}: &{b} {{<<: [*{a}, *{a}]}}\n" for a, b in zip("abcdefghijklmnopqr", "bcdefghijklmnopqrs", strict=True)
)


def cut(text):
    return f"{text[:200]}... ({len(text)} characters)"


@pytest.fixture
def refused(tmp_path):
    """Return what `read_yaml` says about a text, without the file's name."""

    def refused(text):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_yaml(tmp_path / "c.yaml")
        return str(caught.value).replace(f"{tmp_path}/c.yaml", "")

    return refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!int abc", "'abc' is not a valid int"),
        ("0o9", "'0o9' is not a valid int"),
        ("!!bool abc", "'abc' is not a valid bool"),
        ("!!float ''", "'' is not a valid float"),
        ("!!timestamp 2026-01-01", "could not determine a constructor for the tag 'tag:yaml.org,2002:timestamp'"),
        (NINES, f"'{NINES[:99]} is not a valid int"),
        ('"\\U00110000"', "chr() arg not in range(0x110000)"),
        (f"!{HUGE} 1", cut(f"could not determine a constructor for the tag '!{HUGE}'")),
        (f"*{HUGE}", cut(f"found undefined alias '{HUGE}'")),
        ("a\0b", "the character '\\x00' is not allowed"),
    ],
)
def test_a_value_that_is_none_of_its_kind_is_refused_at_its_line(refused, text, message):
    assert refused(f"a: 1\nb:\n- {text}") == f":3: not valid YAML: {message}"


def test_a_key_that_is_not_text_is_refused(refused):
    for key, kind in (("[a, b]", "seq"), ("{a: b}", "map")):
        assert refused(f"a:\n  ? {key}\n  : 1") == f":2: not valid YAML: a key has to be text, not a {kind}"


def test_an_alias_of_what_it_lies_in_is_refused(refused):
    for text in ("a: &a [*a]", "a: &a {b: [*a]}", "a: &a {<<: *a}"):
        assert refused(text) == ":1: not valid YAML: nested deeper than 100 levels, with its aliases written out"


def test_a_bomb_of_aliases_is_refused(refused):
    for bomb in (f"a: &a [{', '.join('x' * 9)}]\n{BOMB}", "a: &a {k: v}\n" + MERGES):
        said = rf":\d+: not valid YAML: more than {NODES} values, with its aliases written out"
        assert re.fullmatch(said, refused(bomb))


def test_a_file_holds_at_most_a_hundred_thousand_values_with_its_aliases_written_out(refused, tmp_path, monkeypatch):
    assert NODES == 100_000
    monkeypatch.setattr(reading, "NODES", 400)
    most = "- &a [1, 2, 3]\n" + "- *a\n" * 98 + "- 1\n- 2\n- 3\n"  # in a list, which counts too
    (tmp_path / "c.yaml").write_text(most)
    assert len(read_yaml(tmp_path / "c.yaml").root.value) == 102
    assert refused(most + "- 4").endswith(": more than 400 values, with its aliases written out")


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (lambda depth: "[" * depth + "1" + "]" * depth, DEEPEST),
        (lambda depth: "\n".join(" " * level + "a:" for level in range(depth)), DEEPEST),
        (lambda depth: "- &a0 []\n" + "\n".join(f"- &a{n + 1} [*a{n}]" for n in range(depth)), DEEPEST - 1),
    ],
    ids=["lists", "block", "aliases"],
)
def test_nesting_ends_at_a_hundred_levels(refused, text, most, tmp_path):
    (tmp_path / "c.yaml").write_text(text(most))
    assert read_yaml(tmp_path / "c.yaml").root.value
    for depth, said in ((most + 1, "nested deeper than 100 levels"), (5 * most, r"nested deeper|maximum recursion")):
        assert re.match(rf":\d+: not valid YAML: ({said})", refused(text(depth)))


def test_an_alias_keeps_the_lines_of_what_it_stands_for(tmp_path):
    (tmp_path / "c.yaml").write_text("base: &base\n  lr: 1\nown: *base\nboth:\n- *base")
    source = read_yaml(tmp_path / "c.yaml")
    assert [Place(source, keys).origin for keys in (("base", "lr"), ("own", "lr"), ("both", 0, "lr"))] == [2, 2, 2]


def longest_run(error):
    return max(len(run) for run in re.findall(r"x+", str(error)))


@pytest.mark.parametrize(
    "text",
    [
        f"{HUGE}: 1",
        f"{{model: {{target: {HUGE}.{HUGE}}}}}",
        f"{{model: [{HUGE}, {HUGE}]}}",
        f"{{eval_data: {{{HUGE}: {{target: 'a:b', args: 3}}}}}}",
        f"{{order: {{{HUGE}: []}}}}",
        f"{{require_plugins: ['{HUGE} {HUGE}']}}",
        *(f"{{trainer: {{{key}: {HUGE}/}}}}" for key in ("seed", "max_duration", "device", "precision", "run_name")),
        f"{{a: {{{HUGE}: 1, {HUGE}: 2}}}}",
    ],
)
def test_no_message_shows_a_value_of_more_than_200_characters(text, tmp_path):
    (tmp_path / "c.yaml").write_text(text.replace(HUGE, HUGE[:1_000]))  # a simple key may have 1,024
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "c.yaml")
    assert 100 < longest_run(caught.value) <= LONGEST
    assert longest_run(Place().error(f"there is no module {HUGE!r}, and {HUGE}: write another")) == LONGEST - 3


PIECES = [
    *("model", "trainer", "seed", "args", "<<", "&a", "*a", "!!int", "!!bool", "!!float", "!!timestamp", "!!binary"),
    *("!!set", "!!omap", "!!pairs", "!!str", "!!null", "!!map", "!!seq", "!", "!x", "? ", "- ", ": ", ", ", "[", "]"),
    *("{", "}", "\n", "\n  ", "|", ">", "'", '"', "\\", "\\ud800", "\\U00110000", "#", "%", "%YAML 1.1", "---", "..."),
    *("0o9", "0x", "-", "1e999", ".nan", "=", "~", "\0", "\x85", "\ufeff", "\t", "2026-13-01", "10:99", NINES),
]  # fmt: skip
NASTY = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30).map("".join)


@settings(max_examples=100, deadline=None)
@given(text=NASTY | st.text(), where=st.sampled_from(["", VALID, VALID + "trainer: ", VALID + "loss:\n  "]))
def test_any_text_is_a_config_or_a_config_error_with_the_file(text, where, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    file.write_bytes((where + text).encode("utf-8", "surrogatepass"))
    told = ""
    try:
        load_config(file)
    except ConfigError as error:
        told = str(error)
    assert all(line.startswith(str(file)) for line in told.splitlines())
    assert not re.search(r"9{201}", told)
