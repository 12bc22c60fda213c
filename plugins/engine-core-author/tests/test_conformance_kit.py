"""What authors may give to the kit: other parts, required algorithms, objects of any class; what its page says."""

from pathlib import Path

import pytest
import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import PluginError
from engine_core_author import AlgorithmConformance, BrokenRule, PassConformance
from engine_core_author.rules import ALGORITHM_RULES, PASS_RULES

from .conformance.honest import NoisyLoss, ScaleGradients
from .conformance.kits import CHECKS, Kit, with_outcome
from .conformance.subjects import AtLoss

PASSED = [
    check for check in CHECKS if check not in ("test_restores", "test_restores_after_an_exception", "test_compile")
]


def test_a_message_says_which_rule_was_broken_what_was_seen_why_it_matters_and_how_to_fix_it():
    class Doubled(AtLoss):
        metadata = AlgorithmMetadata(name="double", events=("after_loss",), writes=("loss",))

    with pytest.raises(BrokenRule) as error:
        Kit(Doubled).test_metadata()
    rule, seen = RULES["test_metadata"], "metadata.name is 'double', but the class's name in snake case is 'doubled'"
    assert str(error.value) == (
        f"Doubled breaks the rule of test_metadata: {rule.says} Seen: {seen}. Why it matters: {rule.why} "
        f"To fix it: {rule.remedy}"
    )


def test_the_name_in_the_metadata_is_compared_with_the_entry_points(install):
    install(
        "their-plugin",
        {"algorithms": {"scale_it": "their_plugin:ScaleTheLoss"}},
        {
            "their_plugin": """
                from engine_core import Algorithm, AlgorithmMetadata

                class ScaleTheLoss(Algorithm):
                    metadata = AlgorithmMetadata(name="scale_the_loss", events=())

                    def match(self, event, state):
                        return False

                    def apply(self, event, state, logger):
                        pass
            """
        },
    )
    from their_plugin import ScaleTheLoss  # noqa: PLC0415

    with pytest.raises(BrokenRule, match=r"'scale_the_loss', but the entry point of their-plugin 1\.0 is 'scale_it'"):
        Kit(ScaleTheLoss).test_metadata()


class Regression(AlgorithmConformance):
    """A model of vectors, and a loss over numbers."""

    def make_algorithm(self):
        return ScaleGradients()

    def make_model(self):
        return nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 1))

    def make_batches(self):
        return [(torch.randn(6, 3), torch.randn(6, 1)) for _ in range(3)]

    def make_loss(self):
        return nn.MSELoss()

    def make_others(self):
        return [NoisyLoss()]


def test_model_batches_and_loss_may_be_the_authors():
    assert with_outcome(Regression(), "passed") == PASSED


class Detector(nn.Module):
    """A model with its own loss, for batches that are mappings."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, batch):
        return self.layer(batch["x"])

    def loss(self, outputs, batch):
        return (outputs - batch["y"]).square().mean()


class OwnLoss(Regression):
    """The same with a model that has its own loss."""

    def make_model(self):
        return Detector()

    def make_batches(self):
        return [{"x": torch.randn(6, 3), "y": torch.randn(6, 2)} for _ in range(3)]

    def make_loss(self):
        return None


def test_a_model_with_its_own_loss_may_be_the_authors_and_its_batches_have_their_form():
    assert with_outcome(OwnLoss(), "passed") == [check for check in PASSED if check != "test_batches"]


class Bare:
    """An algorithm without the base class, without attributes, with what it has to have only."""

    __slots__ = ()
    metadata = AlgorithmMetadata(events=("after_train_batch",), writes=())

    def match(self, event, state):
        return event is Event.AFTER_TRAIN_BATCH

    def apply(self, event, state, logger):
        pass

    def __repr__(self):
        return "Bare()"


def test_an_algorithm_without_base_class_and_attributes_can_be_checked():
    assert with_outcome(Kit(Bare, [NoisyLoss, ScaleGradients]), "passed") == PASSED


class NeedsNoise(AtLoss):
    """Runs only beside another one."""

    metadata = AlgorithmMetadata(events=("after_loss",), writes=("loss",), requires=("noisy_loss",))


def test_what_an_algorithm_requires_is_taken_from_the_others():
    Kit(NeedsNoise, [ScaleGradients, NoisyLoss]).test_writes_declared()


def test_the_check_of_writes_is_skipped_where_nothing_is_declared():
    class Undeclared(AtLoss):
        metadata = AlgorithmMetadata(events=("after_loss",))

    with pytest.raises(pytest.skip.Exception, match="add writes="):
        Kit(Undeclared).test_writes_declared()


def test_a_run_that_ends_within_its_first_epoch_cannot_be_resumed_and_the_check_says_so():
    class StopEarly(Algorithm):
        metadata = AlgorithmMetadata(events=("batch_end",), writes=())

        def match(self, event, state):
            return event is Event.BATCH_END

        def apply(self, event, state, logger):
            state.stop_training()

    with pytest.raises(pytest.skip.Exception, match="ended within its first epoch"):
        Kit(StopEarly).test_resume()


def test_what_passes_say_about_two_instances_in_one_run_is_not_a_fault():
    class Mix(AtLoss):
        metadata = AlgorithmMetadata(events=("after_loss",), writes=("loss",), tags=("loss_interpolation",))

    Kit(Mix).test_two_instances()


@pytest.mark.parametrize(("kit", "method"), [(AlgorithmConformance, "make_algorithm"), (PassConformance, "make_pass")])
def test_a_class_that_does_not_say_what_to_check_gets_an_error(kit, method):
    class Nothing(kit):
        pass

    with pytest.raises(NotImplementedError, match=rf"Nothing has to .*{method}\(self\)"):
        getattr(Nothing(), method)()


def test_what_the_algorithm_raises_outside_the_checks_passes_through():
    class Raises(Algorithm):
        metadata = AlgorithmMetadata(events=("after_loss",), writes=())

        def match(self, event, state):
            return event is Event.AFTER_LOSS

        def apply(self, event, state, logger):
            raise PluginError("not today")

    with pytest.raises(PluginError, match="not today"):
        Kit(Raises).test_writes_declared()


def test_a_check_leaves_the_global_generators_and_the_threads_as_they_were():
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    Kit(AtLoss).test_resume()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


MODULE = """
    from engine_core.errors import PluginError

    class Other:
        def __init__({parameters}):
            {body}

        match = apply = lambda self, *arguments: False
"""


class OfInstalled(AlgorithmConformance):
    def make_algorithm(self):
        return AtLoss()


def test_a_plugin_that_cannot_be_imported_or_needs_arguments_is_left_out_of_the_others(install):
    demanding = MODULE.format(parameters="self, factor", body="pass")
    install("broken", {"algorithms": {"broken": "broken_module:Other"}}, {"broken_module": "raise ImportError"})
    install("demanding", {"algorithms": {"demanding": "demanding_module:Other"}}, {"demanding_module": demanding})
    assert "Other" not in {type(other).__name__ for other in OfInstalled().make_others()}


def test_what_the_constructor_of_another_plugin_raises_is_not_taken_for_a_failed_import(install):
    refusing = MODULE.format(parameters="self", body="raise PluginError('not with this version of its library')")
    install("refusing", {"algorithms": {"refusing": "refusing_module:Other"}}, {"refusing_module": refusing})
    with pytest.raises(PluginError, match="not with this version of its library"):
        OfInstalled().make_others()


PAGE = Path(__file__).parents[3] / "docs" / "authors" / "testing.md"
RULES = {**ALGORITHM_RULES, **{f"{check} (of a pass)": rule for check, rule in PASS_RULES.items()}}


def sections():
    """Return the text below each heading of a check, in one line."""
    parts = PAGE.read_text(encoding="utf-8").split("\n### ")[1:]
    return {part.partition("\n")[0]: " ".join(part.partition("\n")[2].partition("\n## ")[0].split()) for part in parts}


def test_each_check_has_its_section_in_the_order_of_the_kit():
    assert list(sections()) == list(RULES)


def test_a_section_says_the_rule_why_and_how_to_fix_it():
    for check, text in sections().items():
        rule = RULES[check]
        assert text.startswith(f"{rule.says} *How:* "), check
        assert f"*Why:* {rule.why} *To fix it:* {rule.remedy}" in text
