"""Bad use of a loop with Accelerate is refused by name, with what to do; what it lacks is published."""

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from engine_core.errors import ArgumentError, EngineError, UnsupportedError
from engine_core.loop import check_names
from engine_core.needs import NEEDS
from engine_core.registry import Registry
from engine_core_accelerate import EngineLoop
from engine_core_accelerate.loop import NAMES

from .accelerate_runs import Run, make_accelerator
from .cases import make_algorithms, make_net


def first(run):
    return next(iter(run.loop.batches(run.loader)))


# ---- out of turn


def test_outside_of_a_fit_each_is_refused():
    run = Run()
    for called in (lambda: first(run), lambda: run.loop.gradients(0), run.loop.evaluation("eval").__enter__):
        with pytest.raises(EngineError, match=r"can't be called here: no fit is running: it is for within `with loop"):
            called()
    with run.fit():
        pass
    with pytest.raises(EngineError, match=r"^batches\(\) can't be called here: no fit is running"):
        first(run)


def test_gradients_are_asked_for_once_and_of_the_very_batch():
    run = Run()
    with run.fit():
        for batch in run.loop.batches(run.loader):
            with pytest.raises(EngineError, match=r"waits for gradients\(batch\), with the very batch; break after"):
                run.loop.gradients([*batch])
            run.loop.gradients(batch)
            with pytest.raises(EngineError, match=r"^gradients\(batch\) .* no batch waits for it: .* gives, once"):
                run.loop.gradients(batch)
            break


@pytest.mark.parametrize("then", ["another batch", "another epoch", "evaluation", "end"])
def test_a_batch_without_gradients_is_refused(then):
    run = Run()
    what = {"evaluation": r"evaluation\(\)", "end": r"the end of fit\(\)"}.get(then, r"batches\(\)")
    message = rf"^{what} can't be called here: the latest batch of batches\(\) waits"
    with pytest.raises(EngineError, match=message), run.fit():
        for _ in run.loop.batches(run.loader):
            if then != "another batch":
                break
        if then == "another epoch":
            first(run)
        elif then == "evaluation":
            run.evaluate()


def test_in_an_evaluation_nothing_else_is():
    run = Run()
    with run.fit(), run.loop.evaluation("eval"):
        for called in (lambda: first(run), run.loop.evaluation("again").__enter__, lambda: run.loop.gradients(0)):
            with pytest.raises(EngineError, match="called here: an evaluation is running: it is for after that"):
                called()


def test_fit_is_not_called_within_fit():
    run = Run()
    with run.fit(), pytest.raises(EngineError, match="fit is running: fit"), run.fit():
        pass


def test_accumulating_twice_is_refused():
    run = Run(accelerator=make_accelerator(2))
    with pytest.raises(EngineError, match=r"accumulates by itself: take accelerator.accumulate\(\) away"), run.fit():
        for batch in run.loop.batches(run.loader):
            with run.accelerator.accumulate(run.model):
                run.loop.gradients(batch)


# ---- what is given


def test_a_second_init_and_a_model_of_another_one_are_refused():
    run = Run()
    with pytest.raises(EngineError, match=r"init\(\) was called before: make another EngineLoop for another model"):
        run.loop.init(run.net)
    run.model = run.accelerator.prepare(make_net())
    with pytest.raises(EngineError, match=r"^fit\(\) takes the model that init\(model\) returned, as"), run.fit():
        pass
    bare = EngineLoop(run.accelerator, loss_fn=nn.MSELoss())
    with pytest.raises(EngineError, match=r"the model that init\(model\) returned"):
        bare.fit(run.model, run.optimizer).__enter__()


def test_an_optimizer_from_before_init_is_refused_if_parameters_are_new():
    net = make_net()
    loop = EngineLoop(make_accelerator(), algorithms=make_algorithms("squeeze_excite"), loss_fn=nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop.init(net)
    with pytest.raises(EngineError, match="parameters that no optimizer has: make the optimizer after init"):
        loop.fit(*loop.accelerator.prepare(net, optimizer)).__enter__()


def test_a_model_without_a_loss_is_refused_before_it_changes():
    net = make_net()
    with pytest.raises(ArgumentError, match=r"^Sequential has no loss: give EngineLoop\(loss_fn=\.\.\.\), or"):
        EngineLoop(make_accelerator(), algorithms=["blurpool"]).init(net)
    assert [type(module) for module in net.modules()] == [type(module) for module in make_net().modules()]


def test_all_that_is_lacking_is_said_at_once_before_anything_is_registered(tmp_path):
    accelerator = make_accelerator(2)
    with pytest.raises(UnsupportedError) as raised:
        EngineLoop(accelerator, algorithms=["sam", "swa"], callbacks=[("checkpoint_saver", {"folder": tmp_path})])
    lines = str(raised.value)
    assert "SAM (optim-plugin 0.1.0) can't work in accelerate 1." in lines
    assert "no closure: gradient_accumulation_steps makes a step of several batches; set it to 1" in lines
    assert "no duration: the length of training is not known; give EngineLoop(max_duration='10ep')" in lines
    assert "no snapshot: Accelerate saves and loads the run; call accelerator.save_state() in the loop" in lines
    assert not accelerator._custom_objects
    assert not accelerator._load_model_state_pre_hook


def test_accumulation_that_is_set_later_is_seen_by_fit():
    run = Run("sam")
    run.accelerator.gradient_accumulation_steps = 2
    with pytest.raises(UnsupportedError, match="no closure: gradient_accumulation_steps"), run.fit():
        pass


@pytest.mark.parametrize("kind", ["DEEPSPEED", "FSDP"])
def test_other_ways_to_share_a_model_are_refused(kind):
    accelerator = make_accelerator()
    accelerator.state.distributed_type = type(accelerator.distributed_type)[kind]
    with pytest.raises(UnsupportedError, match=f"EngineLoop can't work with {kind}: use one process, or DDP"):
        EngineLoop(accelerator)


def test_tensor_parallelism_and_data_parallel_are_refused():
    accelerator = make_accelerator()
    config = type("Config", (), {"tp_size": 2, "cp_size": 1})()
    accelerator.__class__ = type("Split", (Accelerator,), {"parallelism_config": config})
    with pytest.raises(UnsupportedError, match="EngineLoop can't work with tp: use"):
        EngineLoop(accelerator)
    run = Run()
    run.model = nn.DataParallel(run.net)
    with pytest.raises(UnsupportedError, match="DataParallel: start one process for each device"), run.fit():
        pass


def test_a_name_that_is_gone_is_said_with_the_range():
    check_names("engine-core-accelerate", "accelerate", [f"accelerate.{name}" for name in NAMES])
    with pytest.raises(UnsupportedError, match=r"it lacks Accelerator.gone; install 'accelerate.*', or another"):
        check_names("engine-core-accelerate", "accelerate", ["accelerate:Accelerator.gone"])


# ---- what is offered without the library


def test_reasons_have_remedies():
    offers = Registry.scan().load("loops", "accelerate")
    assert all("; " in why for why in offers.why.values())
    assert {*NEEDS} - offers.gives == {"snapshot", "go_back", "epoch_order", "first_batch", "late_surgery"}
