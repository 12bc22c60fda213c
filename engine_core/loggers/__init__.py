"""Logger destinations that the core ships, found through its entry points as a plugin's are."""
