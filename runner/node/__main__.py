"""`python -m runner.node [join]`: start the agent from its sources.

The archive starts with `MAIN` of `runner/flows/submit/agent_archive.py` instead.
"""

from runner.node.agent.main import start

if __name__ == "__main__":
    start()
