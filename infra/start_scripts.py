"""The scripts of their own that pools name: found beside the stack's file, fit for a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.pool_config import PoolConfig

# Our choice: it travels as one variable. Linux takes 128 KiB for one, and base64 adds a third.
_MAX_BYTES = 32 * 1024
_Problem = tuple[tuple[int | str, ...], str, str]  # where, what, fix


def script_problems(pools: Sequence[PoolConfig], folder: Path) -> Iterator[_Problem]:
    """What keeps a script from running on a node."""
    for number, pool in enumerate(pools):
        if pool.start_script is not None and (found := _problem(folder / pool.start_script)):
            yield ("pools", number, "start_script"), *found


def with_scripts(pools: Sequence[PoolConfig], folder: Path) -> tuple[PoolConfig, ...]:
    """The same pools, scripts by their full paths: whoever plans the pools may stand elsewhere."""
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
        return f"cannot read {file}: {err.strerror}", "its path begins at the stack's file"
    if not content.startswith(b"#!"):
        return f"{file.name} does not begin with #!", "begin it with #!/bin/bash"
    if len(content) > _MAX_BYTES:
        what = f"{file.name} has {len(content)} bytes, and a start task takes 32 KiB of it"
        return what, "put what is large into the image, or download it in the script"
    return None
