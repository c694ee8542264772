"""What runs on a node: standard library only."""
