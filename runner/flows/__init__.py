"""Use cases: what a command does, as data the CLI renders."""
