"""What holds in the loop of each library alike: what watches a run sees it, and what is around a step is kept."""

import json
from itertools import pairwise

import pytest
import torch

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import AuditWarning
from engine_core_author import RecordingDestination
from engine_core_author.audit_callback import Audit
from engine_core_author.probes import at_events
from insight_plugin import Profiler

from .cases import differences, make_algorithms, train_ours
from .libraries import KEYS_OF, TRAINED_WITH, Given
from .lightning_runs import ITS_WARNINGS

pytestmark = [*ITS_WARNINGS, pytest.mark.parametrize("library", TRAINED_WITH)]


class Careless(Algorithm):
    """Halves the loss, and does not say so."""

    metadata = AlgorithmMetadata(events=("after_loss",), writes=())

    def match(self, event, state):
        return event is Event.AFTER_LOSS

    def apply(self, event, state, logger):
        state.loss = state.loss / 2


def test_explain_traces_audit_and_profiler_see_the_run(library, tmp_path):
    memory, audit, file = RecordingDestination(), Audit(), tmp_path / "spans.json"
    algorithms = [*make_algorithms("together", keys=KEYS_OF.get(library)), Careless()]
    with pytest.warns(AuditWarning, match="Careless changed loss at AFTER_LOSS of batch 0 without declaring it"):
        _, engine = TRAINED_WITH[library](Given(tmp_path, algorithms, [audit, Profiler(file)], [memory], epochs=1))
    engine.close()

    assert [each.name for each in engine.explain("before_loss")] == ["label_smoothing"]
    ran = {(trace.name, trace.event.value) for traces in memory.traces for trace in traces.values() if trace.run}
    assert ran >= {
        *(("SelectiveBackprop", "after_dataloader"), ("LabelSmoothing", "before_loss"), ("EMA", "batch_end"))
    }
    assert {(found.field, found.event) for found in audit.findings} == {("loss", Event.AFTER_LOSS)}
    names = [span["name"] for span in json.loads(file.read_text()) if span.get("ph") == "X"]
    spans = ("algorithm/LabelSmoothing/before_loss", "event/forward", "event/loss", "event/backward", "event/batch")
    assert {span: names.count(span) for span in spans} == dict.fromkeys(spans, 7)
    assert (names.count("event/fit"), names.count("event/eval")) == (1, 1)


@pytest.mark.parametrize("case", ["none", "sam"])
def test_gradients_are_clipped_before_after_train_batch_and_those_of_a_second_pass_too(library, case, tmp_path):
    norms = []

    def measure(_, state):
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in state.model.parameters()]).item())

    watch = at_events([Event.AFTER_TRAIN_BATCH], measure)
    left, _ = TRAINED_WITH[library](Given(tmp_path, make_algorithms(case), [watch], clip=0.1))
    assert differences(left, train_ours(case, grad_clip_norm=0.1)) == []
    assert norms == [pytest.approx(0.1, rel=1e-3)] * 14


def test_bf16_is_that_of_our_trainer_with_scoring_in_the_precision_of_the_run(library, tmp_path):
    algorithms = make_algorithms("together", keys=KEYS_OF.get(library))
    left, engine = TRAINED_WITH[library](Given(tmp_path, algorithms, bf16=True))
    ours = train_ours("together", precision="amp_bf16")
    assert engine.state.precision == "amp_bf16"
    # transformers gives float32 outputs to the loss of an evaluation.
    assert differences(left._replace(losses=[]), ours._replace(losses=[])) == []


class Differentiated(Algorithm):
    """Looks at gradients that can be differentiated."""

    metadata = AlgorithmMetadata(events=("after_backward",), writes=())
    backwards_create_graph = True

    def __init__(self):
        self.found = []

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        self.found.append(all(p.grad.requires_grad for p in state.model.parameters()))


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")  # Lightning's own call of it
def test_the_backward_builds_a_graph_for_an_algorithm_that_asks_for_it(library, tmp_path):
    algorithm = Differentiated()
    left, _ = TRAINED_WITH[library](Given(tmp_path, [algorithm]))
    assert algorithm.found == [True] * 14
    assert differences(left, train_ours("none")) == []


def test_a_skipped_step_leaves_weights_momentum_and_decay_alone(library, tmp_path):
    seen = []

    def look(event, state):
        (optimizer,), parameters = state.optimizers, [*state.model.parameters()]
        if event is Event.FIT_START:
            optimizer.param_groups[0]["weight_decay"] = 0.1
        elif event is Event.AFTER_TRAIN_BATCH and state.timestamp.batch == 3:
            state.skip_step()
        elif event is Event.BATCH_END:
            buffers = [optimizer.state[p]["momentum_buffer"] for p in parameters]
            seen.append([value.detach().clone() for value in (*parameters, *buffers)])

    watch = at_events([Event.FIT_START, Event.AFTER_TRAIN_BATCH, Event.BATCH_END], look)
    left, _ = TRAINED_WITH[library](Given(tmp_path, callbacks=[watch], epochs=1, clip=1.0))
    same = [all(map(torch.equal, one, other)) for one, other in pairwise(seen)]
    assert same == [False, False, True, False, False, False]
    assert left.clock[1] == 7
