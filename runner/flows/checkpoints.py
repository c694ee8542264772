"""Checkpoints of a run as they lie in blob: which are complete, and which one counts."""

from __future__ import annotations

from typing import Any, cast

from runner.azure.blobs import BlobContainer, in_parallel
from runner.core.run_paths import RunPaths
from runner.core.run_record import RunRecord
from runner.node.checkpoint import BadManifestError, Checkpoint, CheckpointBlobs, parse_checkpoint
from runner.node.documents import parse_json


def list_checkpoints(container: BlobContainer, run_id: str) -> tuple[Checkpoint, ...]:
    """The complete ones, the one to go on from first. Hashes are compared where it is restored."""
    return _sorted_out(container, run_id)[0]


def checkpoint_problem(container: BlobContainer, run_id: str, attempt: int) -> str | None:
    """What keeps an attempt that runs from saving, by its last word about checkpoints."""
    name = RunPaths(run_id).attempt_events(attempt)
    content = container.read(name) if attempt else None
    for line in reversed((content or b"").splitlines()):
        event = _event(line)
        if event.get("stage") != "checkpoint":
            continue
        if event.get("state") == "failed":
            return str(event.get("message") or "")
        if "checkpoint" in event:  # one that was committed, not one on its way
            return str(event["problem"]) if event.get("problem") else None
    return None


def _event(line: bytes) -> dict[str, Any]:
    try:
        event: Any = parse_json(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", event) if isinstance(event, dict) else {}


def incomplete_checkpoints(container: BlobContainer, run_id: str) -> tuple[str, ...]:
    """Those that nothing can go on from, each with the reason."""
    return _sorted_out(container, run_id)[1]


def _sorted_out(
    container: BlobContainer, run_id: str
) -> tuple[tuple[Checkpoint, ...], tuple[str, ...]]:
    blobs = CheckpointBlobs(run_id)
    sizes = {blob.name: blob.size_bytes for blob in container.list(blobs.root)}
    manifests = {name: k for name in sizes if (k := blobs.number_of(name)) is not None}
    contents = in_parallel(container.read, manifests)
    whole: list[Checkpoint] = []
    problems: list[str] = []
    for content, number in zip(contents, manifests.values(), strict=True):
        try:
            whole.append(_complete(content, blobs, number, sizes))
        except BadManifestError as err:
            problems.append(f"checkpoint {number}: {err}")
    whole.sort(key=lambda checkpoint: checkpoint.order, reverse=True)
    return tuple(whole), tuple(problems)


def find_checkpoint(
    container: BlobContainer, record: RunRecord, wanted: int | None = None
) -> tuple[str, Checkpoint] | None:
    """What a run would go on from, and whose it is: its own newest, else what it began from.

    With `wanted` only its own of that number.
    """
    own = list_checkpoints(container, record.run_id)
    chosen = next((each for each in own if wanted in (None, each.number)), None)
    if chosen is not None:
        return record.run_id, chosen
    before = record.raw.get("resume_from")
    if not before or wanted is not None:
        return None
    run_id, number = str(before["run_id"]), before.get("checkpoint")
    there = list_checkpoints(container, run_id)
    found = next((each for each in there if number in (None, each.number)), None)
    return (run_id, found) if found else None


def _complete(
    manifest: bytes | None, blobs: CheckpointBlobs, number: int, sizes: dict[str, int]
) -> Checkpoint:
    """A checkpoint with all files it names. Raises BadManifestError."""
    checkpoint = parse_checkpoint(manifest or b"", blobs, number)
    for file in checkpoint.files:
        if sizes.get(file.blob) != file.size_bytes:
            raise BadManifestError(f"{file.path} is not whole")
    return checkpoint
