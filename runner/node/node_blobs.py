"""Where a node other than the primary writes: below the run, beside what the primary writes."""

from __future__ import annotations

import json

from runner.node.attempts import RunBlobs, find_log_offsets, start_document
from runner.node.blobs import Container
from runner.node.settings import NodeSettings

OUTPUTS = "outputs.json"  # of an attempt: what was exported


class NodeBlobs(RunBlobs):
    """Blob names of one node of a run (docs/run-format.md)."""

    def __init__(self, run_id: str, rank: int) -> None:
        super().__init__(run_id)
        self.rank = rank
        self._own = f"{run_id}/nodes/{rank}/"
        self.stdout = f"{self._own}stdout.txt"
        self.stderr = f"{self._own}stderr.txt"
        self.metrics = f"{self._own}metrics.jsonl"

    def attempt(self, number: int, file: str) -> str:
        """One file of one attempt on this node."""
        return f"{self._own}attempts/{number}/{file}"


def write_node_start(runs: Container, blobs: NodeBlobs, node: NodeSettings, number: int) -> None:
    """Who has this rank in the attempt, and where its lines begin in the logs."""
    start = start_document(node, number, find_log_offsets(runs, blobs)) | {"rank": blobs.rank}
    runs.put(blobs.attempt(number, "start.json"), json.dumps(start).encode())
