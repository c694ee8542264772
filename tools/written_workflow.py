"""Write the workflows of `runner init --ci github` into a folder, for the linters of workflows.

Usage: python -m tools.written_workflow FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from runner.flows.environment.workflow import render_workflow

_CONFIG = {
    "runner:ci": {"github": "contoso/training", "branch": "release/2", "environment": "azure-dev"},
    "runner:pools": [{"id": "t4", "vm_size": "Standard_NC4as_T4_v3", "start_script": "setup.sh"}],
}


def main() -> None:
    """Write each kind: with a key, and with a passphrase in a folder of the repository."""
    folder = Path(sys.argv[1]).absolute()
    inner = folder / "environments/azure"
    inner.mkdir(parents=True)
    (folder / ".git").mkdir()
    for name, project, uses_key in (("key", folder, True), ("passphrase", inner, False)):
        text = render_workflow(project, "dev", _CONFIG, uses_key=uses_key)
        (folder / f"{name}.yml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
