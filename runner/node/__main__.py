"""`python3 runner-agent.pyz`: the task's command line."""

from runner.node.agent import exit_now, main

if __name__ == "__main__":
    exit_now(main())
