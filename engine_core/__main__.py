"""`python -m engine_core` is `engine-core`."""

from .cli import main

if __name__ == "__main__":  # workers of MPI import what the first process runs
    main(prog_name="engine-core")
