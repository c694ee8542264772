"""Where everything of a run lies in the `runs` container. One class makes every path."""

from __future__ import annotations

from dataclasses import dataclass


def code_blob(sha256: str) -> str:
    """The blob of one content-addressed code archive (or node agent)."""
    return f"code/{sha256}"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Blob names of one run. The format is described in docs/run-format.md."""

    run_id: str

    @property
    def root(self) -> str:
        """Prefix of everything of the run, with the closing slash."""
        return f"{self.run_id}/"

    @property
    def run(self) -> str:
        """The resolved description, written before the task exists."""
        return f"{self.run_id}/run.json"

    @property
    def result(self) -> str:
        """The outcome, written last and once."""
        return f"{self.run_id}/result.json"

    @property
    def stdout(self) -> str:
        """Append blob: what the script wrote to standard output."""
        return f"{self.run_id}/logs/stdout.txt"

    @property
    def stderr(self) -> str:
        """Append blob: what the script wrote to standard error."""
        return f"{self.run_id}/logs/stderr.txt"

    def log(self, stream: str, node: int = 0) -> str:
        """Append blob: `stdout` or `stderr` of the script on one node, counted from 0."""
        if node:
            return f"{self.run_id}/nodes/{node}/{stream}.txt"
        return self.stdout if stream == "stdout" else self.stderr

    def attempts_on(self, node: int) -> str:
        """Prefix of the attempts on one node, with the closing slash."""
        return f"{self.run_id}/nodes/{node}/attempts/" if node else self.attempts

    @property
    def metrics(self) -> str:
        """Append blob: one JSON object a line."""
        return f"{self.run_id}/metrics.jsonl"

    def output(self, attempt: int) -> str:
        """Prefix of what one attempt (counted from 1) exports, with the closing slash."""
        return f"{self.root}output/" if attempt == 1 else f"{self.attempt(attempt)}output/"

    @property
    def checkpoints(self) -> str:
        """Prefix of the checkpoints, with the closing slash."""
        return f"{self.run_id}/checkpoints/"

    @property
    def attempts(self) -> str:
        """Prefix of the attempts, with the closing slash."""
        return f"{self.run_id}/attempts/"

    def attempt(self, number: int) -> str:
        """Prefix of one attempt (counted from 1), with the closing slash."""
        return f"{self.run_id}/attempts/{number}/"

    def attempt_start(self, number: int) -> str:
        """Who runs the attempt: written once, which also claims its number."""
        return f"{self.attempt(number)}start.json"

    def attempt_environment(self, number: int) -> str:
        """What the attempt ran with: interpreter, packages, machine."""
        return f"{self.attempt(number)}environment.json"

    def attempt_events(self, number: int) -> str:
        """Append blob: stages of the attempt, one JSON object a line."""
        return f"{self.attempt(number)}events.jsonl"
