"""The other algorithms that the conformance kit finds, one of each that is installed."""

import pytest

from engine_core.errors import PluginError
from engine_core_author import AlgorithmConformance

from .conformance.subjects import AtLoss

MODULE = """
    from engine_core.errors import PluginError

    class Other:
        def __init__({parameters}):
            {body}

        match = apply = lambda self, *arguments: False
"""


class Kit(AlgorithmConformance):
    def make_algorithm(self):
        return AtLoss()


def test_a_plugin_that_cannot_be_imported_or_needs_arguments_is_left_out_of_the_others(install):
    demanding = MODULE.format(parameters="self, factor", body="pass")
    install("broken", {"algorithms": {"broken": "broken_module:Other"}}, {"broken_module": "raise ImportError"})
    install("demanding", {"algorithms": {"demanding": "demanding_module:Other"}}, {"demanding_module": demanding})
    assert "Other" not in {type(other).__name__ for other in Kit().make_others()}


def test_what_the_constructor_of_another_plugin_raises_is_not_taken_for_a_failed_import(install):
    refusing = MODULE.format(parameters="self", body="raise PluginError('not with this version of its library')")
    install("refusing", {"algorithms": {"refusing": "refusing_module:Other"}}, {"refusing_module": refusing})
    with pytest.raises(PluginError, match="not with this version of its library"):
        Kit().make_others()
