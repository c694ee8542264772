"""Data sets of recipes: from a path of the user, the cache, or the recipe's `download.py`.

The folder of a recipe may contain `download.py`, a program for the machine that submits:

    python download.py fetch FOLDER    fill FOLDER with the data set
    python download.py check FOLDER    check a folder given with --data, and write nothing

Lines of JSON on its standard output report progress (`text`, `done` and `total` in bytes), then the
result (all optional: `name`, `notice`, `source`, `folder` below FOLDER, `files`) or the error
(`code`, `what`, `why`, `fix`; exit code 1). The cache, its lock and its manifest are kept here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from runner.core.file_lock import file_lock
from runner.core.home import (
    HomePaths,
    cache_variables,
    code_variables,
    make_private,
    not_writable,
    runner_home,
)
from runner.core.progress import OnProgress, Progress
from runner.core.recipe.builtin import BUILTIN_FOLDER, builtin_names
from runner.core.storage_paths import check_storage_name
from runner.protocol.errors import ExitCode, RunnerError

DOWNLOADER = "download.py"
_MANIFEST = ".manifest.json"
_LOCK_TIMEOUT_S = 1200.0
_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """One file of a data set; `name` is its path on this machine, relative to the folder."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set on this machine; `notice` is a warning for the user."""

    name: str
    source: Literal["path", "cache", "mirror", "fallback"]
    notice: str | None
    folder: Path
    files: tuple[DatasetFile, ...]


def resolve_dataset(
    name: str,
    given: Path | None,
    home: Path,
    on_progress: OnProgress,
    recipe_folder: Path | None = None,
    *,
    runs_code: bool = True,
) -> Dataset:
    """Return a data set. Download it if it is neither given nor cached.

    Args:
        name: The name in the recipe's `dataset` or in a `dataset:` input.
        given: The path of `--data`.
        home: RUNNER_HOME, which contains the cache.
        on_progress: Receives the progress of a download as stage `data`.
        recipe_folder: The folder of the recipe with this `dataset`; None for an input.
        runs_code: False describes `given` without running `download.py` of the folder.

    Raises:
        RunnerError: the data set cannot be downloaded, read or used.
    """
    script = _find_downloader(name, recipe_folder)
    if given is not None:
        path = given.expanduser().absolute()
        if script is None:
            return from_path(name, path)
        if not runs_code and not _is_ours(script):
            notice = f"{script} was not run to check the data; --run-checks runs it"
            return dataclasses.replace(from_path(name, path), notice=notice)
        return _run(script, "check", name, path, on_progress)
    if script is None:
        raise _unknown(name)
    cache = _cache_folder(name, script, home)
    if cached := _load_cached(cache):
        return cached
    with file_lock(cache.parent / ".lock", what=f"downloading {name}", timeout_s=_LOCK_TIMEOUT_S):
        return _load_cached(cache) or _download(script, name, cache, on_progress)


def cached_dataset(name: str, home: Path, recipe_folder: Path | None = None) -> Dataset | None:
    """Return a data set that is complete on this machine, or None; download nothing.

    Raises:
        RunnerError: `resolve_dataset` cannot download it.
    """
    script = _find_downloader(name, recipe_folder)
    if script is None:
        raise _unknown(name)
    return _load_cached(_cache_folder(name, script, home))


def _find_downloader(name: str, recipe_folder: Path | None) -> Path | None:
    """Return `download.py` of the recipe, else that of the built-in recipe with this name."""
    if recipe_folder is not None and (script := recipe_folder / DOWNLOADER).is_file():
        return script.resolve()
    script = BUILTIN_FOLDER / name / DOWNLOADER
    return script if name in builtin_names() and script.is_file() else None


def _cache_folder(name: str, script: Path, home: Path) -> Path:
    """Return the cache of a data set, per recipe: two may use one name for different data."""
    if script.parent != BUILTIN_FOLDER / name:
        name = f"{name}-{hashlib.sha256(os.fsencode(script)).hexdigest()[:8]}"
    return HomePaths(home).data(name)


def _load_cached(folder: Path) -> Dataset | None:
    """Return the data set that the manifest describes, or None if a file is missing or changed."""
    try:
        raw = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        files = tuple(DatasetFile(**file) for file in raw["files"])
        found = Dataset(str(raw["name"]), "cache", raw["notice"], folder, files)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    complete = all(
        (folder / file.name).is_file() and describe_file(folder, file.name) == file
        for file in files
    )
    return found if complete else None


def _download(script: Path, name: str, folder: Path, on_progress: OnProgress) -> Dataset:
    by = "" if _is_ours(script) else f": running {script} on this machine"
    try:
        make_private(folder)
        on_progress(Progress("data", "start", f"downloading {name}{by}"))
        found = _run(script, "fetch", name, folder, on_progress)
        if found.source != "fallback":  # the next run downloads the data set again
            document = {key: getattr(found, key) for key in ("name", "notice")}
            document["files"] = [dataclasses.asdict(file) for file in found.files]
            (folder / _MANIFEST).write_text(json.dumps(document), encoding="utf-8")
    except OSError as err:
        raise not_writable(folder, err) from err
    except RunnerError:
        on_progress(Progress("data", "failed", f"could not download {name}"))
        raise
    total = sum(file.size_bytes for file in found.files)
    on_progress(Progress("data", "end", found.name, total, total, "bytes"))
    return found


def _run(
    script: Path, verb: str, name: str, folder: Path, on_progress: OnProgress | None = None
) -> Dataset:
    """Run a downloader and return the data set that it reports. Raise RunnerError if it fails."""
    command = [sys.executable, "-Bu", str(script), verb, str(folder)]
    if _is_ours(script):  # a module of the user replaces none of this script
        environment = {**os.environ, "PYTHONUTF8": "1"}
        environment.pop("PYTHONPATH", None)
    else:
        environment = {**code_variables(os.environ), "PYTHONUTF8": "1"}
        if on_progress is not None and verb == "check":
            on_progress(Progress("data", "note", f"running {script} on this machine"))
    if verb == "fetch":
        from runner.flows.local.azurite import find_uv  # noqa: PLC0415  only for a download

        environment["RUNNER_UV"] = find_uv() or ""
        paths = HomePaths(runner_home(os.environ))
        environment |= cache_variables(paths, os.environ)
    reply: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                document = _parse_line(line)
                if "text" in document and on_progress is not None:
                    on_progress(_progress(document))
                elif "text" not in document:
                    reply |= document
        except BaseException:  # Ctrl-C, or an error of the display
            process.kill()
            raise
        code = process.wait()
        errors.seek(0)
        stderr = errors.read().decode("utf-8", "replace")
    if code:
        raise _failure(reply, script, code, stderr)
    base = folder / str(reply.get("folder") or "")
    names = [str(each) for each in reply.get("files") or ()]
    for each in names:
        check_storage_name(each, each)
    source = "fallback" if reply.get("source") == "fallback" else "mirror"
    notice = reply.get("notice")
    return Dataset(
        name=str(reply.get("name") or name),
        source=source if verb == "fetch" else "path",
        notice=None if notice is None else str(notice),
        folder=base,
        files=tuple(describe_file(base, each) for each in names) or from_path(name, base).files,
    )


def _is_ours(script: Path) -> bool:
    return script.is_relative_to(BUILTIN_FOLDER)


def _parse_line(line: bytes) -> dict[str, Any]:
    """Return the object of a JSON line; other output of a downloader is ignored."""
    try:
        document: Any = json.loads(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


def _progress(document: dict[str, Any]) -> Progress:
    done, total = (
        float(value) if isinstance(value := document.get(key), int | float) else None
        for key in ("done", "total")
    )
    unit = None if total is None else "bytes"
    return Progress("data", "progress", str(document["text"]), done, total, unit)


def _failure(reply: dict[str, Any], script: Path, code: int, stderr: str) -> RunnerError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return RunnerError(
        str(reply.get("code") or "R-DATA-DOWNLOAD"),
        str(reply.get("what") or f"{script} failed with exit code {code}"),
        why=str(
            reply.get("why")
            or (lines[-1][:_ERROR_CHARS] if lines else "the script printed no error")
        ),
        fix=str(reply.get("fix") or "correct the script, or pass a file or folder: --data PATH"),
        exit_code=ExitCode.PREFLIGHT,
    )


def _unknown(name: str) -> RunnerError:
    return RunnerError(
        "R-DATA-MISSING",
        f"the recipe needs data set {name!r}",
        why=f"neither runner nor the recipe can download it: there is no {DOWNLOADER}",
        fix="pass a file or folder: --data PATH",
        exit_code=ExitCode.PREFLIGHT,
    )


def from_path(name: str, given: Path) -> Dataset:
    """Return a file, or all files of a folder except hidden ones and links that leave it."""
    path = given.expanduser().absolute()
    if path.is_file():
        return Dataset(name, "path", None, path.parent, (describe_file(path.parent, path.name),))
    if not path.is_dir():
        raise RunnerError(
            "R-DATA-PATH",
            f"no data at {path}",
            fix="pass an existing file or folder: --data PATH",
            exit_code=ExitCode.PREFLIGHT,
        )
    files = tuple(describe_file(path, name) for name in _visible(path))
    if not files:
        raise RunnerError(
            "R-DATA-EMPTY",
            f"{path} has no files",
            fix="pass the folder that contains the data: --data PATH",
            exit_code=ExitCode.PREFLIGHT,
        )
    return Dataset(name, "path", None, path, files)


def describe_file(folder: Path, name: str) -> DatasetFile:
    """Return the size and SHA-256 of a file. Raise RunnerError if it cannot be read."""
    try:
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return DatasetFile(name, file.tell(), digest.hexdigest())
    except OSError as err:
        raise RunnerError(
            "R-DATA-READ",
            f"cannot read {folder / name}",
            why=err.strerror or str(err),
            fix="make the file readable, or pass another folder: --data PATH",
        ) from err


def _visible(folder: Path) -> list[str]:
    root = folder.resolve()
    names: list[str] = []
    for current, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            path = Path(current) / file
            inside = path.resolve().is_relative_to(root)
            if not file.startswith(".") and inside and path.is_file():
                names.append(path.relative_to(folder).as_posix())
    return sorted(names)
