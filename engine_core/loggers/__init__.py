"""The core's own logger destinations, found through entry points like a plugin's, and what others share with them."""

from .values import numbers, orders
from .waiting import Waiting

__all__ = ["Waiting", "numbers", "orders"]
