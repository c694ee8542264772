"""Run ids, and the blob names of everything that belongs to a run."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from runner.protocol.errors import RunnerError

MAX_ID = 64  # Batch ids: 1-64 of [A-Za-z0-9_-], case-insensitive
SUFFIX_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # no 0/o, 1/l
_LOOKED_AT = 1000  # ids, for one that was meant
_STAMP_LENGTH = len("-20261121-143005-k3f9")
_NAME_END = re.compile(r"-\d{8}-")
_NAMES_ALIKE = 0.75
_RUN_ID = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9_-]*)-(?P<stamp>\d{8}-\d{6})-(?P<suffix>[a-z0-9]{4})$"
)


def slug(text: str) -> str:
    """Lower-case letters, digits, `_` and `-`, starting with a letter or digit; never empty."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_-]+", "-", plain).strip("-_") or "run"


def make_run_id(name: str, created: datetime, suffix: str) -> str:
    """`<name>-YYYYMMDD-HHMMSS-xxxx`, at most 64 characters; `suffix` is four of SUFFIX_ALPHABET."""
    short = slug(name)[: MAX_ID - _STAMP_LENGTH].rstrip("-_")
    return f"{short}-{created:%Y%m%d-%H%M%S}-{suffix}"


def is_run_id(text: str) -> bool:
    """Whether `text` has the form of a complete run id."""
    return len(text) <= MAX_ID and _RUN_ID.match(text) is not None


def newest_first(run_ids: list[str]) -> list[str]:
    """Run ids by the time in them, newest first; ids of the same second in reverse order."""
    return sorted(run_ids, key=_time_key, reverse=True)


def _time_key(run_id: str) -> tuple[str, str]:
    match = _RUN_ID.match(run_id)
    return (match["stamp"] if match else "", run_id)


def submission_time(run_id: str) -> datetime | None:
    """The time in a run id, to the second; None where it is none."""
    match = _RUN_ID.match(run_id)
    try:
        stamp = match["stamp"] if match else ""
        return datetime.strptime(stamp, "%Y%m%d-%H%M%S").replace(tzinfo=timezone.utc)  # noqa: UP017  the agent runs on Python 3.10
    except ValueError:
        return None


def job_id_for(experiment: str, pool: str, priority: int = 0) -> str:
    """The Batch job of an experiment on a pool: `<experiment>_<pool>`, cut to fit 64 characters.

    Priority belongs to the job, not to its tasks: one that is not 0 makes a job of its own,
    `<experiment>_<pool>_p10` or `_m10`.
    """
    rank = f"_{'p' if priority > 0 else 'm'}{abs(priority)}" if priority else ""
    # A closed job is followed by `<id>-2`, `<id>-3` ...
    room = MAX_ID - len(pool) - 1 - len(rank) - len("-99")
    return f"{slug(experiment)[: max(room, 1)].rstrip('-_')}_{pool}{rank}"


def check_reference(text: str) -> str:
    """A run reference as typed: an id, a prefix of one, or `@last`. Raises on anything else."""
    if text == "@last" or re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", text):
        return text
    raise RunnerError(
        "R-RUN-REFERENCE",
        f"{text!r} is not a run",
        why="a run is its id, a unique prefix of it, or @last",
        fix="runner ps",
    )


def near_run(text: str, ids: Sequence[str]) -> str | None:
    """The newest of the ids that begin much as `text` does; what was mistyped may be a prefix."""
    import difflib  # noqa: PLC0415  only a mistake needs it

    beginnings = {run_id[: len(text)]: run_id for run_id in reversed(ids[:_LOOKED_AT])}
    found = difflib.get_close_matches(text, beginnings, n=1, cutoff=0.75)
    if not found:
        return None
    near = beginnings[found[0]]
    # Times of one day are alike: they must not make ids of other names look near.
    names = (_NAME_END.split(text)[0], _NAME_END.split(near)[0])
    alike = difflib.SequenceMatcher(None, *names).ratio() >= _NAMES_ALIKE
    return near if alike or not _NAME_END.search(text) else None


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


def run_id_suffix(text: str) -> str:
    """Four characters that tell what was made in one second apart; always the same of a text."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    suffix = ""
    for _ in range(4):
        number, digit = divmod(number, len(ALPHABET))
        suffix += ALPHABET[digit]
    return suffix


ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # of run ids: docs/run-format.md
