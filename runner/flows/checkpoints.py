"""Checkpoints of a run as they lie in blob: which are complete, and which one counts."""

from __future__ import annotations

from runner.azure.blobs import BlobContainer, in_parallel
from runner.core.run_record import RunRecord
from runner.node.checkpoint import BadManifestError, Checkpoint, CheckpointBlobs, parse_checkpoint


def list_checkpoints(container: BlobContainer, run_id: str) -> tuple[Checkpoint, ...]:
    """The complete ones, the one to go on from first. Hashes are compared where it is restored."""
    blobs = CheckpointBlobs(run_id)
    sizes = {blob.name: blob.size_bytes for blob in container.list(blobs.root)}
    manifests = {name: k for name in sizes if (k := blobs.number_of(name)) is not None}
    contents = in_parallel(container.read, manifests)
    found = [
        _complete(content, blobs, number, sizes)
        for content, number in zip(contents, manifests.values(), strict=True)
    ]
    whole = [checkpoint for checkpoint in found if checkpoint is not None]
    return tuple(sorted(whole, key=lambda checkpoint: checkpoint.order, reverse=True))


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
) -> Checkpoint | None:
    """A checkpoint with all files it names, or None."""
    try:
        checkpoint = parse_checkpoint(manifest or b"", blobs, number)
    except BadManifestError:
        return None
    whole = all(sizes.get(file.blob) == file.size_bytes for file in checkpoint.files)
    return checkpoint if whole else None
