"""The documents that client and agent exchange in blob storage. Standard library only, Python 3.10,
because it is packed with the agent. Start in `run_spec`, which has what a run is, then `paths`.
"""
