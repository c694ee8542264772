"""The verbs. `runner.cli.main.VERBS` names the module of each; start there."""
