"""The algorithms of this package keep the rules of engine-core's conformance kit."""

import torch
from schedule_parts import Texts, texts

from engine_core_author import AlgorithmConformance
from schedule_plugin import Curriculum, SequenceWarmup


class TestSequenceWarmup(AlgorithmConformance):
    """Rows are cut up, through most of the training, so that a run is resumed within the warm-up."""

    def make_algorithm(self):
        return SequenceWarmup("0.9dur", min_seq_length=3, step_size=3)

    def make_model(self):
        return Texts()

    def make_batches(self):
        return texts(8, 8, 8, 8)


class TestSequenceWarmupTruncating(TestSequenceWarmup):
    """Rows are truncated, and other items stay as they are."""

    def make_algorithm(self):
        return SequenceWarmup("6ba", min_seq_length=5, step_size=4, truncate=True)


class TestCurriculum(AlgorithmConformance):
    """The brightness of images is their difficulty."""

    def make_algorithm(self):
        return Curriculum(lambda dataset: torch.stack([example[0].mean() for example in dataset]), end=0.9)
