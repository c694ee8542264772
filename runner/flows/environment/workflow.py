"""The workflow of GitHub that plans, deploys and compares a stack.

It uses no action but those of GitHub itself, pinned by their commit, and no secret: jobs sign in
with a token of GitHub that Entra exchanges (docs/guides/ci.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runner.flows.extras import DISTRIBUTION
from runner_infra.config.ci import CiConfig

# Tags of github.com/actions, as in .github/workflows of this project.
_CHECKOUT = "actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8 # v5.0.0"
_PYTHON = "actions/setup-python@e797f83bcb11b83ae66e0230d6156d7c80228e7c # v6.0.0"
_WORKFLOW = ".github/workflows/azure-environment.yml"
_STATE_KEY = """\
      PULUMI_CONFIG_PASSPHRASE: ${{ secrets.PULUMI_CONFIG_PASSPHRASE }}
"""
_SIGN_IN = """\
    env:
      ARM_CLIENT_ID: ${{ vars.@CLIENT@ }}
      ARM_TENANT_ID: ${{ vars.AZURE_TENANT_ID }}
      ARM_USE_OIDC: "true"
@PASSPHRASE@    steps:
      - uses: @CHECKOUT@
        with:
          persist-credentials: false
      - uses: @PYTHON@
        with:
          python-version: "3.12"
      - name: install runner
        run: @INSTALL@
"""
_FOLDER = """\
defaults:
  run:
    working-directory: @FOLDER@

"""


def workflow_file(folder: Path) -> Path:
    """Return the path of the workflow, at the top of the repository that contains a project."""
    return _top(folder) / _WORKFLOW


def render_workflow(folder: Path, stack: str, config: Mapping[str, Any], *, uses_key: bool) -> str:
    """Return the text of the workflow.

    Args:
        folder: the folder of the project, in a repository.
        stack: the name of the stack.
        config: the keys of the stack's file, with `runner:ci`.
        uses_key: False adds the passphrase of the state, a secret of the repository.
    """
    ci = CiConfig.model_validate(dict(config["runner:ci"]))
    inner = folder.relative_to(_top(folder)).as_posix()
    scripts = [
        str(pool["start_script"]) for pool in config["runner:pools"] if "start_script" in pool
    ]
    files = ("Pulumi.yaml", f"Pulumi.{stack}.yaml", *dict.fromkeys(scripts))
    paths = [*(name if inner == "." else f"{inner}/{name}" for name in files), _WORKFLOW]
    at = "" if inner == "." else _FOLDER.replace("@FOLDER@", json.dumps(inner))
    values = {
        "PLAN": _SIGN_IN.replace("@CLIENT@", "AZURE_PLAN_CLIENT_ID"),
        "DEPLOY": _SIGN_IN.replace("@CLIENT@", "AZURE_DEPLOY_CLIENT_ID"),
        "PASSPHRASE": "" if uses_key else _STATE_KEY,
        "CHECKOUT": _CHECKOUT,
        "PYTHON": _PYTHON,
        "INSTALL": _install_command(folder),
        "FOLDER": at,
        "PATHS": json.dumps(paths),
        "BRANCH": ci.branch,
        "ENVIRONMENT": ci.environment,
        "STACK": stack,
    }
    text = Path(__file__).with_suffix(".yml").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _install_command(folder: Path) -> str:
    """Return the command that installs this version; in a clone of runner, that of the clone."""
    if (folder / "infra/runner_infra").is_dir():
        wanted = "./batch_emulator '.[infra]'"
    else:
        wanted = f"'{DISTRIBUTION}[infra]=={version(DISTRIBUTION)}'"
    return " ".join(("pip", "install", wanted))


def _top(folder: Path) -> Path:
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)
