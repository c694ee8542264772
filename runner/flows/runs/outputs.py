"""The files of a run: its outputs and its logs.

Downloads are parallel. Each file is verified, and either complete or absent.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from errno import EACCES, ENOTDIR
from functools import partial
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.home import existing_folder
from runner.core.progress import OnProgress, Progress, ignore_progress
from runner.core.units import format_count
from runner.flows.local_files import (
    BytesMoved,
    Targets,
    has_content,
    plan_targets,
    sha256_of,
)
from runner.flows.runs.documents import load_attempts, load_result, runs_container
from runner.flows.runs.history import list_runs
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup
from runner.protocol.paths import RunPaths, is_selected_output
from runner.protocol.results import OutputFile, RunResult
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Downloaded:
    """The files on this machine, of which `downloaded` are new."""

    folder: Path
    files: tuple[RunFile, ...]
    downloaded: int


@dataclass(frozen=True, slots=True)
class RunFile:
    """One file of a run: an output or a log.

    Attributes:
        path: Its name for users: the path of an output, `stdout.txt`, `rank-1/stderr.txt`.
        blob: Its name in the container of runs.
        sha256: Empty for a log, and for an output before the result of the run.
    """

    path: str
    blob: str
    size_bytes: int
    sha256: str
    is_log: bool = False


def list_outputs(connection: Connection, spec: RunSpec) -> tuple[OutputFile, ...]:
    """Return the outputs of a run; without a result, those uploaded so far, without hashes."""
    return _find_outputs(connection, spec)[1]


def find_files(connection: Connection, spec: RunSpec) -> tuple[RunFile, ...]:
    """Return the existing outputs of a run, then its logs."""
    outputs = _output_files(connection, spec)
    return (*outputs, *_logs(connection, spec, {file.path for file in outputs}))


def _output_files(connection: Connection, spec: RunSpec) -> tuple[RunFile, ...]:
    prefix, files = _find_outputs(connection, spec)
    return tuple(RunFile(f.path, prefix + f.path, f.size_bytes, f.sha256) for f in files)


def _logs(connection: Connection, spec: RunSpec, taken: set[str]) -> list[RunFile]:
    container = runs_container(connection)
    logs = {
        f"rank-{rank}/{stream}.txt" if rank else f"{stream}.txt": RunPaths(spec.run_id, rank).log(
            stream
        )
        for rank in range(spec.nodes)
        for stream in ("stdout", "stderr")
    }
    sizes = in_parallel(container.size, logs.values())
    return [
        RunFile(_free(path, taken), blob, size, "", is_log=True)
        for (path, blob), size in zip(logs.items(), sizes, strict=True)
        if size is not None
    ]


def _free(path: str, taken: set[str]) -> str:
    """Return a name for a log that differs from the names of outputs."""
    while path in taken:
        path = f"logs/{path}"
    return path


def _find_outputs(connection: Connection, spec: RunSpec) -> tuple[str, tuple[OutputFile, ...]]:
    """Return the prefix of the outputs of a run, and the outputs."""
    container = runs_container(connection)
    paths = RunPaths(spec.run_id)
    result = load_result(container, spec.run_id)
    if result is not None:
        return paths.root + result.output, result.outputs
    attempts = load_attempts(container, spec.run_id)
    prefix = paths.output(attempts[-1].attempt if attempts else 1)
    return prefix, tuple(
        OutputFile(blob.name.removeprefix(prefix), blob.size_bytes, "")
        for blob in container.list(prefix)
    )


def download_outputs(
    connection: Connection,
    spec: RunSpec,
    output_dir: Path,
    on_progress: OnProgress,
    patterns: Iterable[str] = (),
) -> Downloaded:
    """Download files to `output_dir/<run_id>/`, except existing ones with the right hash.

    Args:
        connection: the target.
        spec: the run.
        output_dir: the parent folder.
        on_progress: called with updates.
        patterns: paths and globs of outputs and logs; none means all outputs.

    Raises:
        RunnerError: a pattern matches nothing, a hash is wrong, or the folder is not writable.
    """
    patterns = tuple(patterns)
    found = (find_files if patterns else _output_files)(connection, spec)
    files = _matching(found, patterns, spec.run_id)
    folder = output_dir / spec.run_id
    try:
        targets = plan_targets(folder, (file.path for file in files))
        wanted = [
            f for f in files if not has_content(targets.by_path[f.path], f.size_bytes, f.sha256)
        ]
        _download(runs_container(connection), targets, wanted, on_progress)
    except ValueError as err:
        raise RunnerError(
            "R-OUTPUT-PATH",
            str(err),
            why="a file would be written outside the output folder",
            fix="remove links from the output folder, or use another folder with --output-dir",
        ) from err
    except OSError as err:
        raise _unwritable(folder, err) from err
    return Downloaded(folder, files, len(wanted))


def download_group_outputs(
    connection: Connection,
    group: RunGroup,
    output_dir: Path,
    on_progress: OnProgress,
    patterns: Iterable[str] = (),
) -> Mapping[str, Downloaded]:
    """Download the outputs of each run of a sweep or group; see `download_outputs`.

    Returns:
        By task, what was downloaded, without runs that have no such files.

    Raises:
        RunnerError: as for `download_outputs`, or a pattern matches nothing in any run.
    """
    patterns, rows = tuple(patterns), list_runs(connection, limit=None, ids=[*group.runs.values()])
    specs = {row.run_id: row.spec for row in rows.rows if row.spec is not None}
    named = {name: specs[run_id] for name, run_id in group.runs.items() if run_id in specs}
    downloaded: dict[str, Downloaded] = {}
    unmatched = set(patterns)
    on_progress(Progress("download", "start", "", 0, len(named), "runs"))
    for done, (name, spec) in enumerate(named.items(), 1):
        files = find_files(connection, spec) if patterns else ()
        own = tuple(each for each in patterns if any(_matches(f.path, each) for f in files))
        unmatched.difference_update(own)
        if own or not patterns:
            found = download_outputs(connection, spec, output_dir, ignore_progress, own)
            if found.files:
                downloaded[name] = found
        on_progress(Progress("download", "progress", "", done, len(named), "runs"))
    if unmatched:
        raise RunnerError(
            "R-FILE-UNKNOWN",
            f"no run of {group.group_id} has a file {min(unmatched)!r}",
            fix=f"runner files ls {next(iter(group.runs.values()))}",
        )
    text = f"outputs of {format_count(len(downloaded), 'run')}"
    on_progress(Progress("download", "end", text, len(named), len(named), "runs"))
    return downloaded


def _download(
    container: BlobContainer,
    targets: Targets,
    wanted: list[RunFile],
    on_progress: OnProgress,
) -> None:
    if not wanted:
        return
    total = sum(file.size_bytes for file in wanted)
    on_progress(Progress("download", "start", "", 0, total, "bytes"))
    on_bytes = BytesMoved("download", total, on_progress).add

    def download(file: RunFile) -> None:
        target = targets.by_path[file.path]
        container.download(file.blob, target, on_bytes, partial(_check, file))

    in_parallel(download, wanted)
    text = format_count(len(wanted), "file") + targets.note
    on_progress(Progress("download", "end", text, total, total, "bytes"))


def _check(file: RunFile, part: Path) -> None:
    if file.sha256 and sha256_of(part) != file.sha256:
        raise RunnerError(
            "R-OUTPUT-HASH",
            f"{file.path} does not have the hash that the run recorded",
            why="the file was changed in storage, or the transfer was damaged; nothing was written",
            fix="try again; if that fails, too, train again",
        )


def _matching(
    files: tuple[RunFile, ...], patterns: tuple[str, ...], run_id: str
) -> tuple[RunFile, ...]:
    if not patterns:
        return files
    for pattern in patterns:
        if not any(_matches(file.path, pattern) for file in files):
            raise RunnerError(
                "R-FILE-UNKNOWN",
                f"the run has no file {pattern!r}",
                why=f"the run has {len(files)} files, including logs",
                fix=f"runner files ls {run_id}",
            )
    return tuple(f for f in files if any(_matches(f.path, pattern) for pattern in patterns))


def _matches(path: str, pattern: str) -> bool:
    return bool(pattern) and is_selected_output(path, pattern)


def check_output_folder(folder: Path) -> None:
    """Raise R-OUTPUT-FOLDER if outputs could not be written below a folder, before a run starts."""
    there = existing_folder(folder)
    if not there.is_dir():
        raise _unwritable(folder, NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR)))
    if not os.access(there, os.W_OK | os.X_OK):
        raise _unwritable(folder, PermissionError(EACCES, os.strerror(EACCES)))


def _unwritable(folder: Path, err: OSError) -> RunnerError:
    there = existing_folder(folder)
    why, fix = err.strerror or str(err), "use another folder with --output-dir"
    with suppress(OSError, KeyError, NotImplementedError):
        if isinstance(err, PermissionError) and there.stat().st_uid != os.getuid():
            why = f"{there} belongs to {there.owner()}"
            fix = f"{fix}, or make it yours: sudo chown -R {os.getuid()} {shlex.quote(str(there))}"
    return RunnerError(
        "R-OUTPUT-FOLDER",
        f"cannot write to {folder}",
        why=why,
        fix=f"{fix}; outputs of a run that has ended remain in storage",
    )


def output_url(connection: Connection, run_id: str, result: RunResult | None) -> str:
    """Return the URL of the outputs in blob storage."""
    outputs = connection.outputs
    folder = result.output if result else "output/"
    return f"{outputs.blob_endpoint}/{outputs.container_runs}/{run_id}/{folder}"
