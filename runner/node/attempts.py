"""Attempts of a run: whoever creates `attempts/<n>/start.json` runs attempt n."""

from __future__ import annotations

import json
from typing import Any, cast

from runner.node.blobs import Container
from runner.node.clock import now_text
from runner.node.documents import parse_json
from runner.node.settings import NodeSettings


class RunBlobs:
    """Blob names of one run (docs/run-format.md); the agent cannot import the client's."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.run = f"{run_id}/run.json"
        self.result = f"{run_id}/result.json"
        self.stdout = f"{run_id}/logs/stdout.txt"
        self.stderr = f"{run_id}/logs/stderr.txt"
        self.metrics = f"{run_id}/metrics.jsonl"
        self.root = f"{run_id}/"
        self.attempts = f"{run_id}/attempts/"

    def attempt(self, number: int, file: str) -> str:
        """One file of one attempt."""
        return f"{self.attempts}{number}/{file}"

    def output(self, number: int) -> str:
        """Prefix of what one attempt exports.

        Two attempts may run at once when a node only seemed to be lost: they share no output.
        """
        return f"{self.root}output/" if number == 1 else self.attempt(number, "output/")


def start_document(node: NodeSettings, number: int, log_offsets: dict[str, int]) -> dict[str, Any]:
    """Who runs an attempt, and where its lines begin in the logs."""
    return {
        "attempt": number,
        "node": node.node,
        "pool": node.pool,
        "dedicated": node.dedicated,
        "started": now_text(),
        "host": node.host,
        "work_dir": str(node.work_dir),
        "log_offsets": log_offsets,
    }


def find_log_offsets(runs: Container, blobs: RunBlobs) -> dict[str, int]:
    """Where the logs end that earlier attempts wrote."""
    offsets: dict[str, int] = {}
    for stream, blob in (("stdout", blobs.stdout), ("stderr", blobs.stderr)):
        found = runs.head(blob)
        offsets[stream] = found.size_bytes if found else 0
    return offsets


def claim_attempt(
    runs: Container, blobs: RunBlobs, node: NodeSettings, log_offsets: dict[str, int]
) -> int:
    """Take the next free attempt number, counted from 1."""
    number = 1
    while True:
        start = start_document(node, number, log_offsets)
        if runs.create(blobs.attempt(number, "start.json"), json.dumps(start).encode()):
            return number
        number = max([number, *_taken_numbers(runs, blobs)]) + 1


def failures_before(runs: Container, blobs: RunBlobs, attempt: int) -> int:
    """How many earlier attempts ended as failed; lost and terminated ones do not count."""
    return sum(
        1 for number in range(1, attempt) if _end(runs, blobs, number).get("why") == "failed"
    )


def write_end(
    runs: Container,
    blobs: RunBlobs,
    number: int,
    why: str,
    exit_code: int | None,
    step: str | None,
    **more: Any,
) -> None:
    """Say why the attempt ended: succeeded, failed, terminated or, by another node, lost."""
    end = {
        "attempt": number,
        "ended": now_text(),
        "why": why,
        "exit_code": exit_code,
        "step": step,
        **more,
    }
    runs.put(blobs.attempt(number, "end.json"), json.dumps(end).encode())


def _end(runs: Container, blobs: RunBlobs, number: int) -> dict[str, Any]:
    """What end.json says; nothing where it cannot be read, as of an attempt that was lost."""
    try:
        end: Any = parse_json(runs.get(blobs.attempt(number, "end.json")) or b"{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", end) if isinstance(end, dict) else {}


def _taken_numbers(runs: Container, blobs: RunBlobs) -> list[int]:
    rests = (name[len(blobs.attempts) :] for name in runs.list_names(blobs.attempts))
    return [int(rest.split("/")[0]) for rest in rests if rest.split("/")[0].isdigit()]
