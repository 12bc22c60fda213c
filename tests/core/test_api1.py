"""The plugin in tests/api1, made for hook API 1, is unchanged and keeps working."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from engine_core import Engine, Logger, State
from engine_core.errors import EngineError
from engine_core.registry import Registry

FOLDER = Path(__file__).parents[1] / "api1"
WHEEL = "api1_plugin-1.0-py3-none-any.whl"

# Frozen for good: if a test with this plugin fails, the engine has broken its promise to the plugins that are out
# there. Mend the engine, never these files and never these digests.
FROZEN = {
    "api1_plugin-1.0-py3-none-any.whl": "ccc54398c50467a235e5f751ba43163ffc241b10f69d2273634e366acd2412bc",
    "source/README.md": "4f7ede60e6aa8383fe33ae61d1f774b632ecd9040d647730adfbb058404bcecd",
    "source/pyproject.toml": "3be8df2848084779a1dab48843972c518a3e35c0f59d76e285e82e504faa98d8",
    "source/src/api1_plugin/__init__.py": "91c734b563492aac57900966e56e1a0e7d63261264788286fd057bb0fc97af98",
    "source/src/api1_plugin/algorithms.py": "6f1cc2c81da0abbf5ce4a423a77385006a295708f73b4c67dd6be7038384b4c9",
    "source/src/api1_plugin/callbacks.py": "2206a790789a82df1ad745e85b7e281bfdc2f986fde0310612d6d59d6da54242",
    "source/src/api1_plugin/hooks.py": "6ab2a687aaf9422e726fa2f15b0a6fb51a55513867b3cdb62a3c7ce2b2a7d6ec",
    "source/src/api1_plugin/journal.py": "f9770eb900c0ea1bb59b39a4b70d3ef8b50c68bfec0dcde99e19f9ee49ca323d",
    "source/src/api1_plugin/passes.py": "b526d2692e96a5380f7ce9fb234f452b1366d185f67d9ff3680909c1b23b6e98",
}


def test_the_frozen_plugin_is_unchanged_and_the_wheel_holds_the_source_that_is_shown():
    files = [file for file in FOLDER.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    digests = {file.relative_to(FOLDER).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert digests == FROZEN
    with zipfile.ZipFile(FOLDER / WHEEL) as wheel:
        packed = {name: wheel.read(name) for name in wheel.namelist() if name.startswith("api1_plugin/")}
    source = FOLDER / "source" / "src"
    assert packed == {f.relative_to(source).as_posix(): f.read_bytes() for f in source.rglob("*.py")}


SHIPPED = {
    "algorithms": "anywhere=Anywhere api1_keep_first=KeepFirst api1_scale_inputs=ScaleInputs double_loss=DoubleLoss",
    "passes": "drop_api1_muted look_at_api1 sort_api1_anywhere_last",
    "callbacks": "api1_bystander=Bystander api1_ledger=Ledger api1_witness=Witness",
}


def test_it_is_found_with_all_that_it_ships_and_loaded_by_name(api1):
    registry = Registry.scan()
    own = [r for r in registry.records if r.distribution == "api1-plugin"]
    shipped = [(kind, *name.split("=")) for kind, names in SHIPPED.items() for name in names.split()]
    assert [(r.kind, r.name, r.version, r.status) for r in own] == [
        (kind, name, "1.0", "available") for kind, name, *_ in shipped
    ]
    for kind, name, *thing in shipped:
        assert registry.load(kind, name) is getattr(api1, thing[0]) if thing else callable(registry.load(kind, name))
    assert registry.load("algorithms", "api1-plugin:double_loss") is api1.DoubleLoss


@pytest.fixture
def engine(api1):
    """Return an engine with everything from the plugin, and a second instance of an algorithm."""
    scale = [api1.ScaleInputs(factor=10), api1.ScaleInputs(factor=3)]
    algorithms = [api1.Anywhere(), *scale, api1.DoubleLoss(), api1.KeepFirst(keep=2)]
    callbacks = [api1.Witness(), api1.Bystander()]
    state = State(algorithms=algorithms, callbacks=callbacks, max_duration="2ba", seed=1)
    with Engine(state, Logger([api1.Ledger()])) as engine:
        engine.host.register(api1.Hooks())
        yield engine


def fire(engine, *events):
    """Run events and return the traces as literals."""
    return [
        (key, trace.name, trace.event.value, trace.exit_code, trace.order, trace.run)
        for event in events
        for key, trace in engine.run_event(event).items()
    ]


def journal_of(api1, engine, event):
    """Return what the plugin writes into its journal at one event."""
    api1.journal.clear()
    engine.run_event(event)
    return list(api1.journal)


def test_its_algorithms_run_in_the_declared_order_and_change_state(engine):
    engine.state.batch = ([1, 2, 3], [4, 5, 6])
    assert fire(engine, "init", "after_dataloader") == [
        ("KeepFirst/INIT", "KeepFirst", "init", None, 0, True),
        ("KeepFirst/AFTER_DATALOADER", "KeepFirst", "after_dataloader", 2, 0, True),
        ("ScaleInputs-2/AFTER_DATALOADER", "ScaleInputs-2", "after_dataloader", None, 1, True),
        ("ScaleInputs/AFTER_DATALOADER", "ScaleInputs", "after_dataloader", None, 2, True),
        ("Anywhere/AFTER_DATALOADER", "Anywhere", "after_dataloader", None, 3, True),
    ]
    assert engine.state.batch == ([1, 2], [4, 5])


def test_what_it_does_before_it_undoes_in_reverse_after_and_after_an_exception(engine):
    engine.state.batch = batch = ([1, 2], [4, 5])
    assert [trace[1] for trace in fire(engine, "before_forward")] == ["ScaleInputs", "ScaleInputs-2"]
    assert engine.state.batch == ([30, 60], [4, 5])
    assert [trace[1] for trace in fire(engine, "after_forward")] == ["ScaleInputs-2", "ScaleInputs"]
    assert engine.state.batch is batch
    with pytest.raises(MemoryError), engine.restoring():
        engine.run_event("before_forward")
        raise MemoryError
    assert engine.state.batch is batch


def test_its_match_follows_the_clock_and_its_pass_may_drop_members(engine):
    state, seen = engine.state, []
    for _ in range(3):
        state.loss = 3
        engine.run_event("after_loss")
        seen.append(state.loss)
        state.timestamp = state.timestamp.to_next_batch(samples=2)
    assert seen == [6, 3, 3]
    state.algorithms[0].muted = True
    state.batch = ([1], [4])
    assert [trace[1] for trace in fire(engine, "after_dataloader")] == ["KeepFirst", "ScaleInputs-2", "ScaleInputs"]


def test_its_seed_is_what_it_always_was_and_its_state_is_saved_and_restored(api1, engine):
    engine.state.batch = ([1, 2, 3], [4, 5, 6])
    fire(engine, "init", "after_dataloader")
    keep = engine.state.algorithms[-1]
    assert keep.seed == 4002266309998458591
    resumed = api1.KeepFirst()
    resumed.load_state_dict(keep.state_dict())
    assert (keep.state_dict(), resumed.kept) == ({"kept": 2}, 2)


def test_all_listeners_take_their_turn_at_after_dataloader(api1, engine):
    names = ("KeepFirst", "ScaleInputs-2", "ScaleInputs", "Anywhere")
    engine.run_event("init")
    engine.state.batch = ([1, 2, 3], [4, 5, 6])
    assert journal_of(api1, engine, "after_dataloader") == [
        "Hooks around: 0 traces",
        "KeepFirst validates 3 rows",
        "passes at after_dataloader: KeepFirst ScaleInputs ScaleInputs Anywhere",
        "Bystander before KeepFirst at after_dataloader",
        "KeepFirst keeps 2 at batch 0",
        "Ledger: api1/kept is 2 at step 0",
        "Bystander after KeepFirst at after_dataloader",
        "Bystander before ScaleInputs-2 at after_dataloader",
        "ScaleInputs at after_dataloader",
        "Bystander after ScaleInputs-2 at after_dataloader",
        "Bystander before ScaleInputs at after_dataloader",
        "ScaleInputs at after_dataloader",
        "Bystander after ScaleInputs at after_dataloader",
        "Bystander before Anywhere at after_dataloader",
        "Anywhere at AFTER_DATALOADER",
        "Bystander after Anywhere at after_dataloader",
        f"Ledger: {' '.join(f'{name}/AFTER_DATALOADER' for name in names)}",
        "Witness hears after_dataloader",
        "Hooks around: 4 traces",
    ]


def test_all_listeners_take_their_turn_at_batch_end(api1, engine):
    engine.state.timestamp = engine.state.timestamp.to_next_batch(samples=2)
    assert journal_of(api1, engine, "batch_end") == [
        "Bystander before Anywhere at batch_end",
        "Anywhere at BATCH_END",
        "Bystander after Anywhere at batch_end",
        "Ledger: Anywhere/BATCH_END",
        "Hooks first",
        "Witness hears batch_end",
        "Ledger after batch 1",
        "Hooks at batch_end: Anywhere=7#0",
        "Ledger: api1/hooks is 1 at step 1",
        "Hooks last",
    ]
    api1.journal.clear()
    engine.close()
    assert api1.journal == ["Witness closes", "Witness is closed"]


def test_at_init_algorithms_come_last(api1, engine):
    assert journal_of(api1, engine, "init") == [
        "Witness hears init",
        "Bystander before KeepFirst at init",
        "Ledger: api1/keep is 2",
        "Bystander after KeepFirst at init",
        "Ledger: KeepFirst/INIT",
    ]


def test_its_requirement_is_enforced(api1):
    with pytest.raises(EngineError, match="requires '@api1_scaling'"):
        Engine(State(algorithms=[api1.KeepFirst()]), Logger())
