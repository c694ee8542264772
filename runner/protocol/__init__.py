"""What client and agent exchange in blob: standard library only, Python 3.10, packed with the
agent. Start in `run_spec`, then `paths`.
"""
