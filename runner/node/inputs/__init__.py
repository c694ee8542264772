"""Data sets and stage inputs as files of the node. Start in `stage`."""
