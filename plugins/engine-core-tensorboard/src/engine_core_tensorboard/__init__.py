"""What engine-core logs, in TensorBoard: a logger destination, which imports TensorBoard when a fit starts."""

from .destination import TensorBoard

__all__ = ["TensorBoard"]
