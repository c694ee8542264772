"""From the inputs a recipe names to what `run.json` says of them, and what is to be uploaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, BlobInfo
from runner.contract import StackOutputs
from runner.core.progress import OnProgress
from runner.core.recipe.inputs import InputSpec
from runner.flows.data.datasets import Dataset, check_dataset, from_path, resolve_dataset
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.paths import is_selected_output
from runner.protocol.run_spec import data_prefix

# run.json lists every file; more of them belong into an archive.
MAX_FILES = 50_000
_UPLOADED = "inputs"  # the folder of local inputs in the `data` container


@dataclass(frozen=True, slots=True)
class NamedInput:
    """One input: run.json's entry, and the local files that go with it."""

    name: str
    document: Mapping[str, Any]
    dataset: Dataset | None = None


def prepare_inputs(
    specs: Sequence[InputSpec],
    outputs: StackOutputs,
    home: Path,
    on_progress: OnProgress,
    *,
    fetch: bool = True,
) -> tuple[NamedInput, ...]:
    """What can be said without the service; hashes local files. Raises RunnerError."""
    return tuple(_prepare(spec, outputs, home, on_progress, fetch=fetch) for spec in specs)


def _prepare(
    spec: InputSpec, outputs: StackOutputs, home: Path, on_progress: OnProgress, *, fetch: bool
) -> NamedInput:
    if spec.kind == "path":
        return _from_path(spec)
    if spec.kind == "dataset":
        try:
            check_dataset(spec.source)
        except RunnerError as err:
            fix = "use dataset:mnist; name others by path, blob: or https://"
            raise _refused(spec, "runner has no download for this data set", fix) from err
    if spec.kind == "dataset" and fetch:
        dataset = resolve_dataset(spec.source, None, home, on_progress)
        return _uploaded(spec, dataset, dataset.name, single=None)
    if spec.kind == "url":
        return NamedInput(spec.name, {"kind": "url", "url": spec.source, "sha256": spec.sha256})
    if spec.kind == "share":
        if outputs.file_share is None:
            raise _refused(spec, "this stack has no file share", "blob:container/prefix, or a path")
        return NamedInput(spec.name, {"kind": "share", "path": spec.source})
    # The service knows the rest.
    part = {"path": spec.part} if spec.kind == "run" else {}
    return NamedInput(spec.name, {"kind": spec.kind, spec.kind: spec.source, **part})


def _from_path(spec: InputSpec) -> NamedInput:
    path = Path(spec.source).expanduser()
    path = (spec.base or Path.cwd()) / path
    if not path.exists():
        raise _refused(spec, f"there is no {path}", "give a file or folder of this machine")
    dataset = from_path(_UPLOADED, path)
    return _uploaded(spec, dataset, _UPLOADED, single=path.name if path.is_file() else None)


def _uploaded(spec: InputSpec, dataset: Dataset, folder: str, *, single: str | None) -> NamedInput:
    _limit(spec, len(dataset.files))
    files = tuple((file.name, file.size_bytes, file.sha256) for file in dataset.files)
    document = {
        "kind": spec.kind,
        spec.kind: spec.source,
        "prefix": data_prefix(folder, files),
        "single": single,
        "files": [{"name": n, "size_bytes": size, "sha256": sha256} for n, size, sha256 in files],
    }
    return NamedInput(spec.name, document, dataset)


def local_paths(specs: Sequence[InputSpec], folder: Path) -> tuple[Path, ...]:
    """Inputs that lie below the recipe's folder: they travel as inputs, not as code."""
    root = folder.resolve()
    paths = (
        ((spec.base or Path.cwd()) / Path(spec.source).expanduser()).resolve()
        for spec in specs
        if spec.kind == "path"
    )
    return tuple(path for path in paths if path != root and path.is_relative_to(root))


def resolve_in_service(
    connection: Connection,
    named: Mapping[str, Mapping[str, Any]],
    pending_runs: Collection[str] = (),
) -> dict[str, Mapping[str, Any]]:
    """The entries with what only the service knows: what a prefix holds, which run is meant.

    What is known already stays: a run that is repeated reads what it read before. `pending_runs`
    are ids of runs that are about to be submitted.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name, document in named.items():
        if document["kind"] == "blob" and "files" not in document:
            found[name] = _listed(connection, name, document["blob"])
        elif document["kind"] == "run" and "run_id" not in document:
            found[name] = _of_run(connection, name, document, pending_runs)
        else:
            found[name] = document
    return found


def _of_run(
    connection: Connection, name: str, document: Mapping[str, Any], pending: Collection[str]
) -> dict[str, Any]:
    from runner.flows.runs.documents import find_run  # noqa: PLC0415  only where a run is named

    reference, path = document["run"], document.get("path")
    if reference in pending:
        return {"kind": "run", "run_id": reference, "path": path}
    run_id = find_run(connection, reference).run_id
    _check_outputs(connection, InputSpec(name, "run", run_id), path or "")
    return {"kind": "run", "run_id": run_id, "path": path}


def _check_outputs(connection: Connection, spec: InputSpec, path: str) -> None:
    """Refuse what the node would refuse: an outcome never changes. A run may still go on."""
    from runner.flows.runs.documents import load_result, runs_container  # noqa: PLC0415

    result = load_result(runs_container(connection), spec.source)
    if result is None:
        return
    if result.status != "succeeded":
        how = f"{'was ' if result.status == 'cancelled' else ''}{result.status}"
        fix = f"name a run that succeeded: runner retry {spec.source}, or runner ps"
        raise _refused(spec, f"run {spec.source} {how}, so it has no outputs", fix)
    names = [file.path for file in result.outputs]
    if not any(is_selected_output(name, path) for name in names):
        what = f"run {spec.source} has no output {path or 'at all'}"
        fix = f"it wrote {', '.join(names[:10]) or 'nothing'}: runner files ls {spec.source}"
        raise _refused(spec, what, fix)


def _listed(connection: Connection, name: str, source: str) -> dict[str, Any]:
    container, _, prefix = source.partition("/")
    spec = InputSpec(name, "blob", source)
    store = BlobContainer(connection.blob_service(), container)
    blobs: list[BlobInfo] = []
    try:
        for blob in store.list(prefix):
            if _belongs(blob.name, prefix):
                blobs.append(blob)
                _limit(spec, len(blobs))
    except RunnerError as err:
        if err.code != "R-CONTAINER-MISSING":
            raise
        fix = "write container/prefix; runner local env, or the portal, knows the account"
        raise _refused(spec, f"there is no container {container!r}", fix) from err
    single = next((blob for blob in blobs if blob.name == prefix), None)
    if single is not None:
        folder, _, last = prefix.rpartition("/")
        return _blob_document(source, container, folder, [single], last)
    if not blobs:
        raise _refused(spec, "there is no blob of that name, or below it", "check the spelling")
    _refuse_nested(spec, {blob.name for blob in blobs})
    return _blob_document(source, container, prefix, blobs, None)


def _belongs(blob: str, prefix: str) -> bool:
    """Below the folder, or the blob itself; a marker of an empty folder is neither."""
    return (not prefix or blob == prefix or blob.startswith(f"{prefix}/")) and blob[-1:] != "/"


def _blob_document(
    source: str, container: str, folder: str, blobs: Sequence[BlobInfo], single: str | None
) -> dict[str, Any]:
    start = len(folder) + 1 if folder else 0
    files = [
        {"name": b.name[start:], "size_bytes": b.size_bytes, "etag": b.etag, "md5": b.md5}
        for b in blobs
    ]
    manifest = json.dumps([container, folder, files], separators=(",", ":"))
    return {
        "kind": "blob",
        "blob": source,
        "container": container,
        "prefix": f"{folder}/" if folder else "",
        "manifest": hashlib.sha256(manifest.encode()).hexdigest(),
        "single": single,
        "files": files,
    }


def _refuse_nested(spec: InputSpec, names: set[str]) -> None:
    """In blob `a` and `a/b` can both be; in a folder they cannot."""
    for name in names:
        parents = (name[:at] for at, char in enumerate(name) if char == "/")
        if both := next((parent for parent in parents if parent in names), None):
            what = f"{both!r} is a blob, and so is {name!r}: no folder can hold both"
            raise _refused(spec, what, "name a prefix below which that is not so")


def _limit(spec: InputSpec, files: int) -> None:
    if files > MAX_FILES:
        what = f"it has more than {MAX_FILES} files"
        raise _refused(spec, what, "pack them into archives, or mount the container")


def _refused(spec: InputSpec, problem: str, fix: str) -> RunnerError:
    return RunnerError(
        "R-INPUT",
        f"input {spec.name}: {problem}",
        why=f"it is {spec.kind}: {spec.source}",
        fix=fix,
        exit_code=ExitCode.PREFLIGHT,
    )
