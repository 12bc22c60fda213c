"""What engine-core logs, in MLflow: a logger destination, which imports MLflow when a fit starts."""

from .destination import MLflow

__all__ = ["MLflow"]
