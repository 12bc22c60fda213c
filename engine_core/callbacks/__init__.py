"""The callbacks that ship with the core, each registered through the core's own entry points."""
