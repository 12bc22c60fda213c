"""The other algorithms that the conformance kit finds, one of each that is installed."""

import pytest

from engine_core.errors import PluginError
from engine_core.testing import AlgorithmConformance

from .conformance.subjects import AtLoss


def test_a_plugin_that_cannot_be_imported_or_needs_arguments_is_left_out_of_the_others(install):
    install("broken", {"algorithms": {"broken": "broken_module:Broken"}}, {"broken_module": "raise ImportError"})
    install(
        "demanding",
        {"algorithms": {"demanding": "demanding:Demanding"}},
        {
            "demanding": """
                class Demanding:
                    def __init__(self, factor):
                        pass

                    def match(self, event, state):
                        return False

                    def apply(self, event, state, logger):
                        pass
            """
        },
    )

    class Kit(AlgorithmConformance):
        def make_algorithm(self):
            return AtLoss()

    assert {"Broken", "Demanding"} & {type(other).__name__ for other in Kit().make_others()} == set()


def test_what_the_constructor_of_another_plugin_raises_is_not_taken_for_a_failed_import(install):
    install(
        "refusing",
        {"algorithms": {"refusing": "refusing:Refusing"}},
        {
            "refusing": """
                from engine_core.errors import PluginError

                class Refusing:
                    def __init__(self):
                        raise PluginError("not with this version of its library")

                    def match(self, event, state):
                        return False

                    def apply(self, event, state, logger):
                        pass
            """
        },
    )

    class Kit(AlgorithmConformance):
        def make_algorithm(self):
            return AtLoss()

    with pytest.raises(PluginError, match="not with this version of its library"):
        Kit().make_others()
