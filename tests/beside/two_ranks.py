"""A program for several processes: what they see in transformers' Trainer, and then in a loop with Accelerate."""

import sys
from pathlib import Path

import torch

from . import accelerate_ranks, transformers_rank

if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers_rank.main(Path(sys.argv[1]))
    accelerate_ranks.main(Path(sys.argv[1], "accelerate.json"))
