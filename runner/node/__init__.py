"""The agent, which runs on a node: standard library and `runner.protocol` only, Python 3.10,
packed into one `.pyz`. Start in `agent.main`.
"""
