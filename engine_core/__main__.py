"""`python -m engine_core` is `engine-core`."""

from .cli import main

main(prog_name="engine-core")
