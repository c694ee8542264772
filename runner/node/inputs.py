"""Stage inputs: what run.json names under `inputs`, as files of this node, and their variables."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from runner.node.blobs import Container
from runner.node.data import DataCache, DataFile, Source, parse_data_files
from runner.node.documents import parse_json
from runner.node.events import Report
from runner.node.failures import StageFailedError
from runner.node.patience import Patience
from runner.node.transport import StorageError
from runner.node.url_source import UrlSource

STEP = "inputs"
VARIABLE = "RUNNER_INPUT_"
_FOLDER = "inputs"  # below shared/runner, beside the data sets
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

Document = Mapping[str, Any]


@dataclass(frozen=True)
class InputAccess:
    """What inputs are read from: containers by name, and the folder of the pool's mounts."""

    runs: Container
    data: Container
    containers: Mapping[str, Container]
    mounts_dir: Path | None


@dataclass(frozen=True)
class Fetch:
    """What every kind needs; `check` may raise to stop."""

    access: InputAccess
    shared_dir: Path
    work_dir: Path
    patience: Patience
    report: Report
    check: Callable[[], None]

    def cached(
        self, source: Source, prefix: str, files: list[DataFile], key: str, *, shared: bool = True
    ) -> Path:
        """The folder with the files, once per node, or for this task alone."""
        root = self.shared_dir / "runner" / _FOLDER if shared else self.work_dir / _FOLDER
        cache = DataCache(source, root, self.patience, self.report, self.check)
        return cache.ensure(prefix, files, key)


def fetch_inputs(fetch: Fetch, documents: Mapping[str, Document]) -> dict[str, str]:
    """Bring every input to the node; the script's variables. Raises StageFailedError."""
    shutil.rmtree(fetch.work_dir / _FOLDER, ignore_errors=True)
    variables: dict[str, str] = {}
    for name, document in documents.items():
        fetch.report(f"input {name}")
        variables[VARIABLE + name.upper().replace("-", "_")] = str(_one(fetch, name, document))
    return variables


def _one(fetch: Fetch, name: str, document: Document) -> Path:
    try:
        return KINDS[str(document["kind"])](fetch, document)
    except StageFailedError as err:
        # The cache speaks of data sets: here it is this input that failed.
        code = "InputMissing" if err.code == "DataMissing" else err.code
        raise StageFailedError(STEP, code, f"input {name}: {err.message}") from err
    except StorageError as err:
        fetch.check()
        raise _missing(f"input {name}: {err}") from err
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        problem = f"run.json describes it in a way this agent does not know ({err!r})"
        raise _missing(f"input {name}: {problem}") from err


def _uploaded(fetch: Fetch, document: Document) -> Path:
    """Kinds path and dataset: the client uploaded it to the `data` container."""
    prefix = str(document["prefix"])
    files = parse_data_files(document["files"])
    folder = fetch.cached(fetch.access.data.transport, prefix, files, prefix)
    return _part(folder, document.get("single"))


def _blob(fetch: Fetch, document: Document) -> Path:
    """A prefix as it was when the run was submitted: a blob that changed since is refused."""
    name = str(document["container"])
    container = fetch.access.containers.get(name)
    if container is None:
        raise _missing(f"this task has no access to the container {name}")
    files = parse_data_files(document["files"])
    key = f"blob/{document['manifest']}"
    folder = fetch.cached(container.transport, str(document["prefix"]), files, key)
    return _part(folder, document.get("single"))


def _url(fetch: Fetch, document: Document) -> Path:
    """With a hash, or a server that names versions, once per node; else for this task alone."""
    url = str(document["url"])
    expected: str | None = document.get("sha256")
    source = UrlSource(url, fetch.patience, hashed=expected is not None)
    name = _UNSAFE.sub("_", unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]).strip(".")
    version = None if expected else source.version()
    file = DataFile(name or "file", None, expected, etag=source.etag)
    key = hashlib.sha256(json.dumps([url, expected, version]).encode()).hexdigest()
    shared = bool(expected or version)
    return fetch.cached(source, "", [file], f"url/{key}", shared=shared) / file.name


def _share(fetch: Fetch, document: Document) -> Path:
    """A path below the pool's mounts, or below one of them."""
    mounts, path = fetch.access.mounts_dir, str(document["path"])
    if ".." in PurePosixPath(path).parts or PurePosixPath(path).is_absolute():
        raise _missing(f"{path!r} leaves the share")
    # The logs of the mounts lie beside them.
    mounted = (
        sorted(p for p in mounts.iterdir() if p.is_dir()) if mounts and mounts.is_dir() else []
    )
    if mounts is None or not mounted:
        raise _missing("this pool mounts no file share: runner pool ls, or name it as blob:")
    found = [place / path for place in (mounts, *mounted) if (place / path).exists()]
    if len(found) == 1:
        return found[0]
    names = ", ".join(place.name for place in mounted)
    problem = "is in several of them" if found else "is in none of them"
    raise _missing(f"the pool mounts {names}; {path!r} {problem}")


def _run(fetch: Fetch, document: Document) -> Path:
    """What another run exported; `path` is a file, a folder or a glob of its outputs."""
    run_id, path = str(document["run_id"]), str(document.get("path") or "")
    body = fetch.access.runs.get(f"{run_id}/result.json")
    if body is None:
        raise _missing(f"run {run_id} has no result yet: start this one `after` it")
    result: dict[str, Any] = parse_json(body)
    if result.get("status") != "succeeded":
        raise _missing(f"run {run_id} {result.get('status')}, so it has no outputs")
    output = str(result.get("output") or "output/")
    outputs: list[dict[str, Any]] = result.get("outputs") or []
    there = [DataFile(str(o["path"]), int(o["size_bytes"]), str(o["sha256"])) for o in outputs]
    files = [file for file in there if is_selected(file.name, path)]
    if not files:
        names = ", ".join(file.name for file in there[:10]) or "nothing"
        raise _missing(f"run {run_id} has no output {path or 'at all'}; it wrote {names}")
    prefix = f"{run_id}/{output}"
    folder = fetch.cached(fetch.access.runs.transport, prefix, files, f"run/{prefix}")
    return _part(folder, path if (folder / path).exists() else None)


def is_selected(name: str, path: str) -> bool:
    """Whether an output is meant by a path: a file, a folder, a glob, or empty for all."""
    below = name == path or name.startswith(f"{path}/")
    return not path or below or fnmatch.fnmatchcase(name, path)


def _part(folder: Path, part: str | None) -> Path:
    if part is None:
        return folder
    if ".." in PurePosixPath(part).parts or PurePosixPath(part).is_absolute():
        raise _missing(f"{part!r} is not a name inside the input")
    return folder / part


def _missing(message: str) -> StageFailedError:
    return StageFailedError(STEP, "InputMissing", message)


KINDS: Mapping[str, Callable[[Fetch, Document], Path]] = {
    "path": _uploaded,
    "dataset": _uploaded,
    "blob": _blob,
    "url": _url,
    "share": _share,
    "run": _run,
}
