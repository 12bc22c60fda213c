"""The training loop, evaluation, and the Trainer that wires the parts."""
