"""What a person who looks in gets: the script's environment, as a file that a shell reads."""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Container, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

SHELL_FILE = "environment.sh"  # in the attempt's folder `logs`, which is never exported
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Secrets of the task. Whoever may read files of nodes through Batch would see them in this one.
_HIDDEN = frozenset({"AZ_BATCH_AUTHENTICATION_TOKEN"})


def write_shell_file(
    folder: Path, environment: Mapping[str, str], secrets: Container[str] = ()
) -> None:
    """Write `environment.sh` for the owner only, without `secrets`; they are named in it."""
    lines: list[str] = []
    for name, value in sorted(environment.items()):
        if not _NAME.fullmatch(name):
            continue  # no shell can have it
        if name in secrets or name in _HIDDEN:
            lines.append(f"# {name} is a secret: it is not here")
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    part = folder / f".{SHELL_FILE}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write("\n".join(lines) + "\n")
        part.replace(folder / SHELL_FILE)
    except OSError as err:
        # The run does not need it: only who looks in goes without the environment.
        logger.warning("no environment for a shell on this node: %s", err)
