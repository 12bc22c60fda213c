"""The checks of the conformance kit by subject: each takes the kit and returns the fault that it found, or None."""
