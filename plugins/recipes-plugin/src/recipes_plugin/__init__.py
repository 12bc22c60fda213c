"""Training recipes: each a YAML file beside this one, which `engine-core train --recipe NAME` adds to a config."""
