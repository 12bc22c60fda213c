"""Config files, hostile and damaged ones too: a config, or a ConfigError with the line, and at once."""

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.config import Config, ConfigError, load_config, override, reading
from engine_core.config.reading import LONGEST, NODES, Place, read_yaml
from engine_core.errors import MetadataError
from engine_core.files import DEEPEST

TARGET = {"target": "nets:Net"}
VALID = """
model: {target: "nets:Net"}
data: {target: "nets:loader"}
optimizer: {target: "torch.optim:SGD", args: {lr: 1e-3}}
"""


@pytest.fixture
def refused(tmp_path):
    """Return what `load_config` says about a text, with the folder left out."""

    def refused(text):
        file = tmp_path / "run.yaml"
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(file)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return refused


def test_what_is_left_out_has_its_default_and_a_plugin_is_a_name_or_a_mapping(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(VALID + "callbacks:\n  # - none\nalgorithms: [ema, {name: mixup, args: {a: 1}}, {target: 'a:B'}]")
    assert load_config(file).model_dump(exclude_defaults=True) == {
        "model": {"target": "nets:Net"},
        "data": {"target": "nets:loader"},
        "optimizer": {"target": "torch.optim:SGD", "args": {"lr": 0.001}},
        "algorithms": [{"name": "ema"}, {"name": "mixup", "args": {"a": 1}}, {"target": "a:B"}],
    }


def test_yaml_is_version_1_2_and_merged_keys_may_be_overridden(tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text(
        "values: [1e-3, off, no, 1:30, 010, 0x10, 2026-01-01, true, ~, .5, -.inf, 3ep, '1']\n"
        "base: &base {lr: 1, m: 2}\nown: {<<: *base, lr: 3}"
    )
    read = read_yaml(file).root.plain()
    assert (read["own"], read["values"]) == (
        {"lr": 3, "m": 2},
        [0.001, "off", "no", "1:30", 10, 16, "2026-01-01", True, None, 0.5, float("-inf"), "3ep", "1"],
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modle: 3", "1: modle: unknown key; did you mean 'model'?"),
        ("seed: 3", "1: seed: unknown key here; it belongs under trainer: write it as trainer.seed"),
        ("trainer: {seed: true}", "1: trainer.seed: has to be a valid integer, not True"),
        ("trainer: {precision: fp17}", "1: trainer.precision: has to be 'fp32', 'amp_bf16' or 'amp_fp16', not 'fp17'"),
        ("trainer: {device: gpu}", "1: trainer.device: has to be auto, cpu, cuda, cuda:1 or mps, not 'gpu'"),
        ("trainer: {max_duration: 0ep}", "1: trainer.max_duration: has to be longer than zero, not '0ep'"),
        (
            "trainer: {run_name: ../x}",
            "1: trainer.run_name: has to be a folder's name, without spaces and slashes, not",
        ),
        ("loss: 'nets:loss'", "1: loss: has to be a mapping (target, args), not 'nets:loss'"),
        (
            "loss: {target: nets.loss}",
            "1: loss.target: has to be 'module:attribute', as in 'torch.nn:Linear', not 'nets.",
        ),
        ("loss: {target: nets.loss}", "'nets.loss'; did you mean 'nets:loss'?"),
        ("algorithms:\n- ema\n- {nam: ema}", "3: algorithms[1].nam: unknown key; did you mean 'name'?"),
        ("algorithms: [{args: {}}]", "1: algorithms[0]: has neither name nor target; give the name of an installed"),
        ("order: {befor_loss: []}", "1: order.befor_loss: 'befor_loss' is not an event; did you mean 'before_loss'?"),
        ("require_plugins: [a b]", "1: require_plugins[0]: 'a b' is not a requirement such as 'some-plugin>=1.2,<2': "),
    ],
)
def test_a_mistake_is_reported_with_file_line_key_and_remedy(refused, text, said):
    told = refused(text + VALID)
    assert told.startswith("run.yaml:")
    assert said in told


def test_all_problems_come_in_the_order_of_the_file(refused):
    assert refused("trainer: {seed: -1}\ndata: {target: a}\n").splitlines() == [
        "run.yaml: model: this key is missing",
        "run.yaml: optimizer: this key is missing",
        "run.yaml:1: trainer.seed: has to be greater than or equal to 0, not -1",
        "run.yaml:2: data.target: has to be 'module:attribute', as in 'torch.nn:Linear', not 'a'",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing", ": has to be a mapping (model, data, optimizer, "),
        ("- a", ": has to be a mapping (model, data, optimizer, "),
        ("a: [1", ":1: not valid YAML: while parsing a flow sequence, expected ',' or ']', but got"),
        ("a: {b: 1,\n b: 2}", ":2: not valid YAML: duplicate key 'b', first used in line 1; remove one"),
        ("a: !!python/name:os.system", ":1: not valid YAML: could not determine a constructor for the tag"),
        ("a: 1\n---\nb: 2", ":2: not valid YAML: expected a single document in the stream"),
    ],
)
def test_anything_but_a_mapping_is_reported_with_its_line(refused, text, message):
    assert refused(text).startswith(f"run.yaml{message}")


def test_a_missing_file_suggests_the_nearest_and_a_binary_one_is_refused(tmp_path):
    (tmp_path / "digits.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match=r"digit\.yaml: there is no such file; did you mean 'digits\.yaml'\?$"):
        load_config(tmp_path / "digit.yaml")
    with pytest.raises(ConfigError, match=r"digits.yaml: not a text file"):
        load_config(tmp_path / "digits.yaml")


def test_override_replaces_settings_leaves_none_alone_and_refuses_what_a_file_could_not_say():
    config = Config(model=TARGET, data=TARGET, optimizer=TARGET)
    changed = override(config, seed=3, device=None)
    assert changed.model_dump(exclude_unset=True)["trainer"] == {"seed": 3}
    with pytest.raises(ConfigError, match=r"^trainer\.max_duration: '3' has no unit"):
        override(config, max_duration="3")


def test_a_config_made_in_python_is_refused_with_the_place_and_without_a_url():
    with pytest.raises(MetadataError) as refusal:
        Config(model={"target": 3}, data=TARGET)
    assert str(refusal.value).splitlines() == [
        "model.target: has to be a valid string, not 3",
        "optimizer: this key is missing",
    ]


def test_a_mistake_in_a_config_is_told_without_torch_as_json_too(tmp_path):
    (tmp_path / "run.yaml").write_text("modle: 3")
    code = "import sys; sys.modules['torch'] = None; from engine_core.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "train", "run.yaml", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (2, 2)
    assert done.stderr == "Error: run.yaml:1: modle: unknown key; did you mean 'model'?\n"


HUGE = "x" * 5_000
NINES = "9" * 5_000
BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
MERGES = "".join(
    f"{b}: &{b} {{<<: [*{a}, *{a}]}}\n" for a, b in zip("abcdefghijklmnopqr", "bcdefghijklmnopqrs", strict=True)
)


def cut(text):
    return f"{text[:200]}... ({len(text)} characters)"


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
    assert refused(f"a: 1\nb:\n- {text}") == f"run.yaml:3: not valid YAML: {message}"


def test_a_key_that_is_not_text_and_an_alias_of_what_it_lies_in_are_refused(refused):
    for key, kind in (("[a, b]", "seq"), ("{a: b}", "map")):
        assert refused(f"a:\n  ? {key}\n  : 1") == f"run.yaml:2: not valid YAML: a key has to be text, not a {kind}"
    for text in ("a: &a [*a]", "a: &a {b: [*a]}", "a: &a {<<: *a}"):
        said = "nested deeper than 100 levels, with its aliases written out"
        assert refused(text) == f"run.yaml:1: not valid YAML: {said}"


def test_a_bomb_of_aliases_is_refused(refused):
    for bomb in (f"a: &a [{', '.join('x' * 9)}]\n{BOMB}", "a: &a {k: v}\n" + MERGES):
        said = rf"run.yaml:\d+: not valid YAML: more than {NODES} values, with its aliases written out"
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
        assert re.match(rf"run.yaml:\d+: not valid YAML: ({said})", refused(text(depth)))


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
