"""`python3 runner-agent.pyz`: the task's command line."""

from runner.node.start import start

if __name__ == "__main__":
    start()
