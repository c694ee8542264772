"""The recipe that a qualification runs: `probe.py` is sent to nodes, and read by `evidence.py`."""
