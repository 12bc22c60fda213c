"""The core's own logger destinations, found through entry points like a plugin's."""
