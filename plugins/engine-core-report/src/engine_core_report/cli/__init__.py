"""The commands that this distribution adds to `engine-core`."""
