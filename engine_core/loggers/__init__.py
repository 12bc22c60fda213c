"""The core's own logger destinations, found through entry points like a plugin's, and what others share with them."""

from .values import Waiting, numbers, orders

__all__ = ["Waiting", "numbers", "orders"]
