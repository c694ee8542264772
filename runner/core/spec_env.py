"""`env:` of train.yaml: variables whose values everybody may read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from runner.core.spec_form import Form

# What the agent and Batch set: they come after `env`, so it would change nothing.
_SET_BY_OTHERS = ("RUNNER_", "AZ_BATCH_")
_LIKE_A_SECRET = re.compile(r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY)$")


def _settable(name: str) -> str:
    if name.upper().startswith(_SET_BY_OTHERS):
        context = {
            "problem": f"{name} is set by {'runner' if name.upper().startswith('R') else 'Batch'}",
            "why": f"names that begin with {' or '.join(_SET_BY_OTHERS)} are not a recipe's",
            "fix": "choose another name",
        }
        raise PydanticCustomError("runner", "{problem}", context)
    return name


EnvFile = dict[
    Annotated[
        str,
        Form(
            r"^[A-Za-z_][A-Za-z0-9_]*$",
            "the name of a variable",
            "letters, digits and _, and begins with no digit",
            "OMP_NUM_THREADS",
        ),
        AfterValidator(_settable),
    ],
    str,
]


def env_warnings(env: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each variable that has the name of a secret."""
    return tuple(
        f"{name} in env looks like a secret, and run.json and logs show it; as one it is written "
        f"secrets: {{{name}: {{env: {name}}}}}"
        for name, value in env.items()
        if value and _LIKE_A_SECRET.search(name)
    )
