"""Start scripts of pools: files next to the stack's file that run on every node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.pool_config import PoolConfig

# Our choice. The script is one environment variable, base64 adds a third, and Linux allows 128 KiB.
_MAX_BYTES = 32 * 1024
_Problem = tuple[tuple[int | str, ...], str, str]  # where, what, fix


def script_problems(pools: Sequence[PoolConfig], folder: Path) -> Iterator[_Problem]:
    """Yield the problems of the pools' scripts: location, problem and fix."""
    for number, pool in enumerate(pools):
        if pool.start_script is not None and (found := _problem(folder / pool.start_script)):
            yield ("pools", number, "start_script"), *found


def with_scripts(pools: Sequence[PoolConfig], folder: Path) -> tuple[PoolConfig, ...]:
    """Return the pools with absolute paths of their scripts."""
    return tuple(
        pool.model_copy(update={"start_script": str(folder.absolute() / pool.start_script)})
        if pool.start_script is not None
        else pool
        for pool in pools
    )


def _problem(file: Path) -> tuple[str, str] | None:
    try:
        content = file.read_bytes()
    except OSError as err:
        return f"cannot read {file}: {err.strerror}", "use a path relative to the stack's file"
    if not content.startswith(b"#!"):
        return f"{file.name} does not start with #!", "start it with #!/bin/bash"
    if len(content) > _MAX_BYTES:
        what = f"{file.name} has {len(content)} bytes; a start script may have 32 KiB"
        return what, "add large files to the image, or download them in the script"
    return None
