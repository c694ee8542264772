"""The agent, which runs on a node: standard library and `runner.protocol` only, Python 3.10.

It is packed into one `.pyz` file. Start in `agent.main`.
"""
