"""What a config names is imported, checked and made; what can't be is reported with its place."""

import functools

import pytest

from engine_core import Batches, LoggerDestination
from engine_core.config import (
    Config,
    ConfigError,
    Target,
    bind,
    build,
    build_algorithms,
    build_batches,
    build_listeners,
    build_passes,
    check_plugins,
    make_factory,
)
from engine_core.config.reading import Node, Place, SourceFile

PARTS = """
    from engine_core import Algorithm, Callback, LoggerDestination

    class Fade(Algorithm):
        def __init__(self, speed=1):
            if speed < 0:
                raise ValueError(f"speed has to be positive, not {speed}")
            self.speed = speed

        match = apply = lambda self, *arguments: True

    class Watch(Callback): ...

    class Keep(LoggerDestination): ...

    def step(parameters, rate):
        return parameters, rate

    def crash():
        return {}["missing"]

    def turn(algorithms, event, by=1):
        return list(reversed(algorithms))

    number = 3
"""
PLACE = Place(SourceFile("run.yaml", Node({"model": Node(None, 7)})), ("model",))


@pytest.fixture
def fades(install):
    install(
        "fade-plugin",
        {"algorithms": {"fade": "fades:Fade"}, "callbacks": {"watch": "fades:Watch", "keep": "fades:Keep"}},
        {"fades": PARTS},
    )


def config(**sections):
    target = {"target": "a:b"}
    return Config(model=target, data=target, optimizer=target, **sections)


def test_build_calls_the_target_with_its_arguments_even_if_it_lies_in_a_class(fades):
    assert build(Target(target="fades:Fade", args={"speed": 3}), PLACE).speed == 3
    assert build(Target(target="fades:Fade.metadata.model_dump"), PLACE)["tags"] == ()


def test_a_factory_gets_its_argument_first_and_may_lack_what_comes_later(fades):
    section = Target(target="fades:step", args={})
    assert make_factory(Target(target="fades:step", args={"rate": 2}), PLACE)("p") == ("p", 2)
    assert make_factory(section, PLACE, "rate", "unknown")("p", rate=3) == ("p", 3)
    with pytest.raises(ConfigError, match="missing a required argument: 'rate'"):
        make_factory(section, PLACE)


def test_bind_instantiates_classes_and_leaves_functions(fades):
    turn = bind(Target(target="fades:turn", args={"by": 2}), PLACE)
    assert (type(turn), turn.keywords) == (functools.partial, {"by": 2})
    assert bind(Target(target="fades:turn"), PLACE).__name__ == "turn"
    assert type(bind(Target(target="fades:Fade"), PLACE)).__name__ == "Fade"


def test_what_a_row_is_can_be_said_and_one_path_stands_for_a_list(fades):
    assert build_batches(config()) == Batches()
    said = build_batches(
        config(batches={"shared": "temperature", "per_row": [0, "meta.boxes"], "tokens": "fades:step"})
    )
    assert (said.shared, said.per_row, said.tokens.__name__) == (("temperature",), (0, "meta.boxes"), "step")
    assert build_batches(config(batches={"dim": {0: 1, "y": -1}})) == Batches(dim={0: 1, "y": -1})
    with pytest.raises(ConfigError, match=r"batches: Batches: samples says what all rows are, so leave out shared"):
        build_batches(config(batches={"samples": True, "shared": [0]}))
    with pytest.raises(ConfigError, match=r"batches\.count: 'fades' has no attribute 'number_of'"):
        build_batches(config(batches={"count": "fades:number_of"}))


@pytest.mark.parametrize(
    ("target", "arguments", "said"),
    [
        ("fads:Fade", {}, ": there is no module 'fads'; did you mean 'fades'?"),
        ("email.mim:Fade", {}, ": there is no module 'email.mim'; did you mean 'email.mime'?"),
        ("fades:Fad", {}, ": 'fades' has no attribute 'Fad'; did you mean 'Fade'?"),
        ("fades:Fade.xyz", {}, ": 'Fade' has no attribute 'xyz'"),
        ("fades:number", {}, ": 'fades:number' is not a class or function: it is 3"),
        ("fades:step", {}, ".args: step: missing a required argument: 'parameters'"),
        ("fades:Fade", {"sped": 1}, ".args.sped: Fade has no argument 'sped'; did you mean 'speed'?"),
        ("fades:Fade", {"xyz": 1}, ".args.xyz: Fade has no argument 'xyz'; it takes: speed"),
        ("fades:Fade", {"speed": -1}, ": Fade: speed has to be positive, not -1 (at "),
        ("fades:Fade", {"speed": "x"}, ": Fade: '<' not supported between instances of 'str' and 'int' (at "),
    ],
)
def test_a_target_or_arguments_that_are_refused_are_reported_with_their_place(fades, target, arguments, said):
    with pytest.raises(ConfigError) as caught:
        build(Target(target=target, args=arguments), PLACE)
    assert str(caught.value).startswith(f"run.yaml:7: model{said}")


def test_a_crash_in_the_users_code_keeps_its_type_and_gets_a_note(fades, install):
    with pytest.raises(KeyError) as caught:
        build(Target(target="fades:crash"), PLACE)
    assert caught.value.__notes__ == ["raised while making what run.yaml:7: model describes"]
    install("odd-plugin", {}, {"odd_module": "import not_there_at_all"})
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all") as missing:
        build(Target(target="odd_module:Net"), PLACE)
    assert missing.value.__notes__ == ["raised while importing 'odd_module' for run.yaml:7: model"]


def test_algorithms_come_by_name_and_by_target(fades):
    listed = [{"name": "fade", "args": {"speed": 2}}, {"target": "fades:Fade"}]
    assert [algorithm.speed for algorithm in build_algorithms(config(algorithms=listed))] == [2, 1]


def test_an_unknown_plugin_and_an_unmet_requirement_are_reported_with_their_place(fades):
    with pytest.raises(ConfigError, match=r"^algorithms\[1\]: 'fad' is not among .*; did you mean 'fade'\?$"):
        check_plugins(config(algorithms=["fade", "fad"]))
    unmet = r"^require_plugins\[0\]: fade-plugin>=2 is required, but .* 1\.0 is installed; "
    with pytest.raises(ConfigError, match=unmet):
        check_plugins(config(require_plugins=["fade-plugin>=2"]))


def test_a_logger_belongs_under_loggers(fades):
    assert isinstance(build_listeners(config(loggers=["keep"]), "loggers")[0], LoggerDestination)
    with pytest.raises(ConfigError, match=r"^callbacks\[0\]: Keep is a logger; list it under loggers$"):
        build_listeners(config(callbacks=["keep"]), "callbacks")
    with pytest.raises(ConfigError, match=r"^loggers\[0\]: Watch is not a LoggerDestination$"):
        build_listeners(config(loggers=["watch"]), "loggers")


def test_passes_keep_their_index_and_the_order_comes_last(fades):
    turn = {"target": "fades:turn", "index": 0}
    given = config(algorithms=["fade"], passes=[turn], order={"init": ["fade"]})
    passes = build_passes(given, build_algorithms(given))
    assert [(function.__name__, index) for function, index in passes] == [("turn", 0), ("explicit_order", -1)]


def test_a_pass_that_runs_anyway_and_an_unknown_name_in_the_order_are_refused(fades):
    with pytest.raises(ConfigError, match=r"^passes\[0\]: pass 'set_filo_order' runs anyway, as engine-core is in use"):
        build_passes(config(passes=["set_filo_order"]), [])
    given = config(algorithms=["fade"], order={"init": ["Fade", "fad"]})
    unknown = r"^order.init\[1\]: 'fad' is not one of this config's .*; did you mean 'fade'\?$"
    with pytest.raises(ConfigError, match=unknown):
        build_passes(given, build_algorithms(given))
