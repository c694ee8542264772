"""`python3 runner-agent.pyz [join]`: the task's command line, or its coordination command."""

from runner.node.agent.main import start

if __name__ == "__main__":
    start()
