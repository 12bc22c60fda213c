"""What happened, in the order in which it happened."""

journal: list[str] = []
