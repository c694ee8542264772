"""Run IDs, the blob names of everything that belongs to a run, and file names in blob names.

A file name is unchanged if blob storage accepts it, otherwise escaped.
Linux allows every byte but NUL and `/` in a name. The name of a blob has no control character, no
backslash and no part that ends with a dot, is valid Unicode, and has at most 1,024 characters in
254 parts (REST docs, "Naming and Referencing Containers, Blobs, and Metadata", read 2026-11-23).

The *stored path* of a file has `%xHH` for each byte that a blob name cannot contain: `a%x5Cb` is
the file `a\\b`. Documents, listings and commands use it. If the name of a file contains such a
sequence itself, its `%` becomes `%x25`, so that a stored path identifies one file. Documents
contain the whole stored path, even if it is too long for a blob. The name of that blob consists of
the start of the path and a hash.
"""

from __future__ import annotations

import hashlib
import operator
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from fnmatch import fnmatchcase

from runner.protocol.errors import RunnerError

MAX_ID = 64  # Batch ids: 1-64 of [A-Za-z0-9_-], case-insensitive
SUFFIX_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # no 0/o, 1/l
_MAX_COMPARED = 1000  # run IDs that are searched for a similar one
STAMP_LENGTH = len("-20261121-143005-k3f9")  # the part of a run ID after the name
_NAME_END = re.compile(r"-\d{8}-")
_SIMILAR = 0.75
_RUN_ID = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9_-]*)-(?P<stamp>\d{8}-\d{6})-(?P<suffix>[a-z0-9]{4})", re.ASCII
)
# The run ID of a trial has the name, the time and the suffix of its sweep.
_TRIAL_RUN = re.compile(r"(?P<name>.+)-\d+(?P<rest>-\d{8}-\d{6}-[a-z0-9]{4})")


def slug(text: str) -> str:
    """Return the text in lower-case letters, digits, `_` and `-`; never empty."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_-]+", "-", plain).strip("-_") or "run"


def make_run_id(name: str, created: datetime, suffix: str) -> str:
    """Return `<name>-YYYYMMDD-HHMMSS-xxxx`, at most 64 characters.

    Args:
        name: Any text; it is shortened and reduced to the allowed characters.
        created: Time of the submission, UTC.
        suffix: Four characters of SUFFIX_ALPHABET.
    """
    short = slug(name)[: MAX_ID - STAMP_LENGTH].rstrip("-_")
    return f"{short}-{created:%Y%m%d-%H%M%S}-{suffix}"


def is_run_id(text: str) -> bool:
    """Return True if the text has the form of a complete run ID."""
    return len(text) <= MAX_ID and _RUN_ID.fullmatch(text) is not None


# A job of a schedule has the number of its firing behind a colon.
_BATCH_ID = re.compile(r"[A-Za-z0-9_:-]{0,128}")


def check_batch_id(text: str) -> None:
    """Raise ValueError for an ID that Batch cannot have: IDs become parts of URLs and commands."""
    if not _BATCH_ID.fullmatch(text):
        raise ValueError(f"invalid ID {text[:80]!r}")


def parse_sweep_id(run_id: str) -> str | None:
    """Return the ID of the sweep if the run ID has the form of a trial's, else None."""
    found = _TRIAL_RUN.fullmatch(run_id)
    return found["name"] + found["rest"] if found else None


def trial_prefix(group_id: str) -> str:
    """Return the prefix of the run IDs of a sweep, which other sweeps may share."""
    return group_id[:-STAMP_LENGTH] + "-"


def task_trial_ids(task_id: str, most: int) -> tuple[str, ...]:
    """Return the run IDs of the trials that a task may run one after another.

    Args:
        task_id: The task, whose ID is the run ID of its first trial.
        most: Maximum number of its trials; the others have the next numbers of the sweep.
    """
    found = _TRIAL_RUN.fullmatch(task_id)
    if found is None or most == 1:
        return (task_id,)
    name, rest = found["name"], found["rest"]
    first = task_id[len(name) + 1 : -len(rest)]
    numbers = range(int(first), int(first) + most)
    return tuple(f"{name}-{number:0{len(first)}d}{rest}" for number in numbers)


def newest_first(run_ids: list[str]) -> list[str]:
    """Sort run IDs by their time, newest first; within a second, in reverse order."""
    return sorted(run_ids, key=_time_key, reverse=True)


def _time_key(run_id: str) -> tuple[str, str]:
    match = _RUN_ID.fullmatch(run_id)
    return (match["stamp"] if match else "", run_id)


def submission_time(run_id: str) -> datetime | None:
    """Return the time in a run ID, to the second, or None for another text."""
    match = _RUN_ID.fullmatch(run_id)
    try:
        stamp = match["stamp"] if match else ""
        # `strptime` takes ten times as long, and a listing has thousands of runs.
        date, _, time = stamp.partition("-")
        parts = (date[:4], date[4:6], date[6:], time[:2], time[2:4], time[4:])
        return datetime(*map(int, parts), tzinfo=timezone.utc)  # noqa: UP017  the agent runs on Python 3.10
    except ValueError:
        return None


def job_id_for(experiment: str, pool: str, priority: int = 0) -> str:
    """Return the ID of the Batch job of an experiment on a pool: `<experiment>_<pool>`.

    A job has one priority for all its tasks, so each priority other than 0 has its own job:
    `<experiment>_<pool>_p10` or `_m10`. The experiment is cut to fit 64 characters.
    """
    rank = f"_{'p' if priority > 0 else 'm'}{abs(priority)}" if priority else ""
    # A closed job is followed by `<id>-2`, `<id>-3` ...
    room = MAX_ID - len(pool) - 1 - len(rank) - len("-99999")
    return f"{slug(experiment)[: max(room, 1)].rstrip('-_')}_{pool}{rank}"


def check_reference(text: str) -> str:
    """Return a reference to a run (an ID, a prefix, or `@last`). Raise RunnerError otherwise."""
    if text == "@last" or re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", text):
        return text
    raise RunnerError(
        "R-RUN-REFERENCE",
        f"invalid run {text!r}",
        why="expected a run ID, a unique prefix of one, or @last",
        fix="run `runner ps` to list the runs",
    )


def find_similar_run(text: str, ids: Sequence[str]) -> str | None:
    """Return the newest run ID that starts similarly to `text`, which may be a prefix, or None."""
    import difflib  # noqa: PLC0415 - needed after a typing error only

    beginnings = {run_id[: len(text)]: run_id for run_id in reversed(ids[:_MAX_COMPARED])}
    found = difflib.get_close_matches(text, beginnings, n=1, cutoff=0.75)
    if not found:
        return None
    near = beginnings[found[0]]
    # Compare the names without times, because all times of one day are similar.
    names = (_NAME_END.split(text)[0], _NAME_END.split(near)[0])
    similar = difflib.SequenceMatcher(None, *names).ratio() >= _SIMILAR
    return near if similar or not _NAME_END.search(text) else None


CODE_FOLDER = "code/"


def code_blob(sha256: str) -> str:
    """Return the blob of a content-addressed archive: code or the node agent."""
    return f"{CODE_FOLDER}{sha256}"


DELETING = ".deleting"


DELETING_FOLDER = "deleting/"


def deleting_mark(run_id: str) -> str:
    """Return the blob that exists while a run is being deleted, and hides the run from lists."""
    return f"{run_id}{DELETING}"


def deleting_note(run_id: str) -> str:
    """Return the blob by which one listing finds all runs that are being deleted."""
    return f"{DELETING_FOLDER}{run_id}"


class RunPaths:
    """Blob names of one run, as docs/run-format.md describes them. Prefixes end with a slash.

    The nodes of a run have ranks from 0. With a `rank` above 0, logs, metrics and attempts are
    those of that node; everything else belongs to the run. Attempts count from 1.
    """

    def __init__(self, run_id: str, rank: int = 0) -> None:
        self.run_id = run_id
        self.rank = rank
        self.root = f"{run_id}/"
        self._node = f"{run_id}/nodes/{rank}/" if rank else self.root
        self.run = f"{self.root}run.json"  # the run specification, written before the task exists
        self.result = f"{self.root}result.json"  # the outcome, written once, after everything else
        self.checkpoints = f"{self.root}checkpoints/"
        self.attempts = f"{self._node}attempts/"
        self.metrics = f"{self._node}metrics.jsonl"  # append blob: one JSON object per line
        self.system = f"{self._node}system.jsonl"  # append blob: what the run used of the node
        self.stdout = self.log("stdout")
        self.stderr = self.log("stderr")

    def log(self, stream: str) -> str:
        """Return the append blob of a log: `stdout` or `stderr` of the script, or `build`."""
        folder = self._node if self.rank else f"{self.root}logs/"
        return f"{folder}{stream}.txt"

    def output(self, attempt: int) -> str:
        """Return the prefix of the files that one attempt exports.

        Each attempt has its own, because two can run at once if a node only seemed to be lost.
        """
        return f"{self.root}output/" if attempt == 1 else f"{self.root}attempts/{attempt}/output/"

    def attempt(self, number: int) -> str:
        """Return the prefix of the records of one attempt."""
        return f"{self.attempts}{number}/"

    def attempt_start(self, number: int) -> str:
        """Return the blob with the node of the attempt. Its creation claims the number."""
        return f"{self.attempt(number)}start.json"

    def attempt_end(self, number: int) -> str:
        """Return the blob that says why the attempt ended."""
        return f"{self.attempt(number)}end.json"

    def attempt_hold(self, number: int) -> str:
        """Return the blob that says until when the node was kept after the attempt failed."""
        return f"{self.attempt(number)}hold.json"

    def attempt_environment(self, number: int) -> str:
        """Return the blob with interpreter, packages and machine of the attempt."""
        return f"{self.attempt(number)}environment.json"

    def attempt_resume(self, number: int) -> str:
        """Return the blob with the checkpoint that the attempt started from."""
        return f"{self.attempt(number)}resume.json"

    def attempt_outputs(self, number: int) -> str:
        """Return the list of files that one of several nodes, or a terminated attempt, exported."""
        return f"{self.attempt(number)}outputs.json"

    def attempt_events(self, number: int) -> str:
        """Return the append blob with the stages of the attempt, one JSON object per line."""
        return f"{self.attempt(number)}events.jsonl"


def run_id_suffix(text: str) -> str:
    """Return four characters of SUFFIX_ALPHABET that depend on the text alone."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    suffix = ""
    for _ in range(4):
        number, digit = divmod(number, len(SUFFIX_ALPHABET))
        suffix += SUFFIX_ALPHABET[digit]
    return suffix


def is_selected_output(name: str, path: str | None) -> bool:
    """Return True if `path` names the output `name`.

    Args:
        name: the stored path of one output.
        path: a file, a folder or a glob, as a stored path or as the script named it. None and ""
            select all outputs.
    """
    if not path or name == path:
        return True
    return any(
        name == meant or name.startswith(f"{meant.rstrip('/')}/") or fnmatchcase(name, meant)
        for meant in (path, as_stored(path))
    )


_PLANES = range(0x1FFFE, 0xF0000, 0x10000)  # each plane ends with two noncharacters
# Control characters, the backslash, bytes that are not UTF-8 (surrogates), private use (`\uE000` in
# the documentation), noncharacters, and a dot at the end of a part. A container cannot be listed
# any more once it has a blob with `\x1b` or `\uffff` in its name (Azurite 3.35 answers 500).
_NOT_IN_BLOBS = re.compile(
    "[\x01-\x1f\x7f-\x9f\\\\\ud800-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000f0000-\U0010ffff"
    + "".join(f"{chr(last)}{chr(last + 1)}" for last in _PLANES)
    + r"]|\.(?=/|\Z)"
)
_LOOKS_ESCAPED = re.compile("%(?=x[0-9A-F]{2})")
# Only sequences that `stored_path` writes: similar names from older agents stay unchanged.
_ESCAPED = re.compile(rb"%x(0[1-9A-F]|1[0-9A-F]|5C|7F|[89A-F][0-9A-F]|25(?=x[0-9A-F]{2})|2E\Z)")
_MAX_CHARACTERS, _MAX_PARTS = 1024, 254
_KEPT_CHARACTERS, _KEPT_PARTS = 500, 200  # the part of a name that is kept if it is too long
_KEPT_OF_NAME = 60  # the number of characters that are kept of a name that is replaced
_SHORT = 2 * _MAX_PARTS - 1  # a name with at most this many characters cannot have too many parts
_SHORTENED = re.compile(r"(?:\A|/)%x/[0-9a-f]{64}\Z")


def stored_path(path: str) -> str:
    """Return the stored path of a file on this system. `path` is relative, with slashes."""
    return stored_path_from_bytes(os.fsencode(path))


def stored_path_from_bytes(path: bytes) -> str:
    """Return the stored path of a file on Linux. This function works on any system."""
    return as_stored(_LOOKS_ESCAPED.sub("%x25", path.decode("utf-8", "surrogateescape")))


def as_stored(text: str) -> str:
    """Return the stored path of a path that a user typed, which may be escaped already."""
    return _NOT_IN_BLOBS.sub(_escape, text)


def file_path(stored: str) -> str:
    """Return the path of a file from its stored path.

    A byte that is not UTF-8 becomes a surrogate on every system, as Python does on Linux.
    `os.fsdecode` would reject it on Windows.
    """
    return "/".join(map(_unescape, stored.split("/"))) if "%x" in stored else stored


def file_paths(
    stored: Iterable[str],
    possible: Callable[[str], str] = str,
    alike: Callable[[str], str] = str,
    same: Callable[[str, str], bool] = operator.eq,
) -> dict[str, str]:
    """Return the path of each file by its stored path. All paths are different.

    Two stored paths may stand for the same path: an older version wrote the blob `notes.`, which is
    now `notes%x2E`. And a blob `a` may exist together with `a/b`. In these cases, one file gets a
    name with a hash, which is the same on every machine.

    Args:
        stored: relative stored paths, in any order.
        possible: returns the name that the file system accepts for a name.
        alike: returns a key that is equal for all names that might denote the same file.
        same: returns True if two names with equal keys denote the same file.
    """
    names = sorted(set(stored))
    folders = {"/".join(parts[:end]) for parts in (name.split("/") for name in names)
               for end in range(1, len(parts))}  # fmt: skip
    chosen: dict[tuple[str, str, bool], str] = {}
    taken = defaultdict[tuple[str, str], list[str]](list)

    def in_use(parent: str, kept: str) -> bool:
        others = taken[parent, alike(kept)]
        return any(other == kept or same(other, kept) for other in others)

    def choose(parent: str, part: str, *, is_folder: bool) -> str:
        if (parent, part, is_folder) not in chosen:
            start = kept = possible(file_path(part))
            hashed = part
            while in_use(parent, kept):  # another stored path claimed it
                kept = with_hash(start, hashed)
                hashed += "/"
            taken[parent, alike(kept)].append(kept)
            chosen[parent, part, is_folder] = f"{parent}{kept}"
        return chosen[parent, part, is_folder]

    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (name in folders, name)):
        *above, last = name.split("/")
        parent = ""
        for part in above:
            parent = f"{choose(parent, part, is_folder=True)}/"
        found[name] = choose(parent, last, is_folder=False)
    return found


def with_hash(start: str, name: str) -> str:
    """Return a name that begins with `start` and contains a hash of `name`."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{start[:_KEPT_OF_NAME]}~{digest[:8]}"


def _escape(found: re.Match[str]) -> str:
    text = found[0]
    errors = "surrogateescape" if "\udc80" <= text <= "\udcff" else "surrogatepass"
    return "".join(f"%x{byte:02X}" for byte in text.encode("utf-8", errors))


def _unescape(part: str) -> str:
    encoded = part.encode("utf-8", "surrogateescape")
    data = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), encoded)
    return part if data in (encoded, b".", b"..") else data.decode("utf-8", "surrogateescape")


def blob_name(name: str) -> str:
    """Return the name of the blob for the full name of a file, shortened if it is too long."""
    if len(name) <= _SHORT or (
        name.count("/") < _MAX_PARTS
        and len(name.encode("utf-16-le", "surrogatepass")) <= 2 * _MAX_CHARACTERS
    ):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{listed_prefix(name)}%x/{digest}"


def listed_prefix(prefix: str) -> str:
    """Return the prefix of all blobs whose full names start with `prefix`.

    It is shorter than `prefix` if names are shortened there.
    """
    folders = prefix.split("/")[: _KEPT_PARTS + 1]
    kept = ""
    for folder in folders[:-1]:
        if len(kept) + len(folder) >= _KEPT_CHARACTERS:
            break
        kept += f"{folder}/"
    return kept


def is_shortened(blob: str) -> bool:
    """Return True if a blob has the form of a shortened name."""
    return _SHORTENED.search(blob) is not None
