"""The studies of the repository: their files are read, and the digits' study has each algorithm of the repository."""

import pytest

from engine_core.registry import Registry
from engine_core_study.file import is_study, read_study

from .conftest import ROOT

NOT_ON_DIGITS = {"ngram_embedding", "sequence_warmup", "token_shift"}
"""What needs sequences: the study of text has them."""
STUDIES = [path for path in sorted((ROOT / "benchmarks").glob("*/*.yaml")) if is_study(path)]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_a_file_describes_a_study(path):
    design = read_study(path)
    assert len(design.arms) > 1
    assert len(design.seeds) > 2


def test_the_study_of_methods_has_an_arm_for_each():
    arms = {arm.name: arm.algorithms for arm in read_study(ROOT / "benchmarks" / "studies" / "digits.yaml").arms}
    names = {record.name for record in Registry.scan().records_of("algorithms")}
    assert arms == {"plain": [], **{name: [name] for name in names - NOT_ON_DIGITS}}
