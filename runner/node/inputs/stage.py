"""The stage `inputs`: download the `inputs` of run.json, and return their variables."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import ssl
import time
import urllib.error
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import DataCache, DownloadSource
from runner.node.script.streams import Report
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import TRANSIENT_STATUS, StorageRequestError
from runner.node.storage.retries import RetryBudget
from runner.protocol.codec import parse_json
from runner.protocol.commands import read_parameters, swept_parameters
from runner.protocol.groups import TRIALS_INPUT, LaterRun, group_blob
from runner.protocol.host import remove_tree
from runner.protocol.paths import as_stored, file_path, is_selected_output
from runner.protocol.run_spec import DataFile

STEP = "inputs"
INPUT_VARIABLE_PREFIX = "RUNNER_INPUT_"
_FOLDER = "inputs"  # in shared/runner or in the task's folder
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

URL_TIMEOUT_S = 30.0
URL_UNREACHABLE_AFTER_S = 60.0
MAX_NAME_CHARS = 200  # of a file name that is derived from a URL
# Larger inputs should be blobs, which are verified and read in parallel.
MAX_URL_BYTES = 200 * 1024**3

InputDocument = Mapping[str, Any]


@dataclass(frozen=True)
class InputAccess:
    """The sources of inputs: containers, and the folder of the pool's mounts.

    `containers` has the containers of `blob` inputs, by name. `mounts_dir` is None without mounts.
    """

    runs: ContainerClient
    data: ContainerClient
    containers: Mapping[str, ContainerClient]
    mounts_dir: Path | None


@dataclass(frozen=True)
class InputFetch:
    """The context in which inputs of all kinds are downloaded. `check` may raise to stop."""

    access: InputAccess
    shared_dir: Path
    work_dir: Path
    retry_budget: RetryBudget
    report: Report
    check: Callable[[], None]

    def cached(
        self,
        source: DownloadSource,
        prefix: str,
        files: list[DataFile],
        key: str,
        *,
        shared: bool = True,
    ) -> Path:
        """Download missing files and return their folder.

        Args:
            source: where to download from.
            prefix: the common prefix of the files at the source.
            files: the files.
            key: the name of the folder in the cache.
            shared: True to share the folder with other tasks of the node.
        """
        root = self.shared_dir / "runner" / _FOLDER if shared else self.work_dir / _FOLDER
        cache = DataCache(source, root, self.retry_budget, self.report, self.check)
        return cache.ensure(prefix, files, key)


def fetch_inputs(fetch: InputFetch, documents: Mapping[str, InputDocument]) -> dict[str, str]:
    """Download every input. Return the script's variables.

    Args:
        fetch: the sources and folders.
        documents: the inputs of run.json by name.

    Raises:
        StageFailedError: an input is missing or cannot be downloaded.
    """
    remove_tree(fetch.work_dir / _FOLDER)
    variables: dict[str, str] = {}
    for name, document in documents.items():
        fetch.report(f"input {name}")
        variables[INPUT_VARIABLE_PREFIX + name.upper().replace("-", "_")] = str(
            _fetch_input(fetch, name, document)
        )
    return variables


def _fetch_input(fetch: InputFetch, name: str, document: InputDocument) -> Path:
    try:
        return KINDS[str(document["kind"])](fetch, document)
    except StageFailedError as err:
        # The cache reports missing files as DataMissing, the code of the stage `data`.
        code = "InputMissing" if err.code == "DataMissing" else err.code
        raise StageFailedError(STEP, code, f"input {name}: {err.message}") from err
    except StorageRequestError as err:
        fetch.check()
        raise _input_missing(f"input {name}: {err}") from err
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        problem = f"invalid description in run.json ({err!r})"
        raise _input_missing(f"input {name}: {problem}") from err


def _fetch_uploaded(fetch: InputFetch, document: InputDocument) -> Path:
    """Kinds `path` and `dataset`: files that the client uploaded to the container `data`."""
    prefix = str(document["prefix"])
    files = list(map(DataFile.from_json, document["files"]))
    folder = fetch.cached(fetch.access.data.transport, prefix, files, prefix)
    return _select_part(folder, document.get("single"))


def _fetch_blob(fetch: InputFetch, document: InputDocument) -> Path:
    """Kind `blob`: the blobs below a prefix. One that changed since the submission is an error."""
    name = str(document["container"])
    container = fetch.access.containers.get(name)
    if container is None:
        raise _input_missing(f"this task has no access to the container {name}")
    files = list(map(DataFile.from_json, document["files"]))
    key = f"blob/{document['manifest']}"
    folder = fetch.cached(container.transport, str(document["prefix"]), files, key)
    return _select_part(folder, document.get("single"))


def _fetch_url(fetch: InputFetch, document: InputDocument) -> Path:
    """Kind `url`: a file. The node's tasks share it only if its version is known."""
    url = str(document["url"])
    expected: str | None = document.get("sha256")
    source = UrlSource(url, fetch.retry_budget, hashed=expected is not None)
    name = _UNSAFE.sub("_", unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]).strip(".")
    version = None if expected else source.version()
    file = DataFile(name[-MAX_NAME_CHARS:] or "file", None, expected, etag=source.etag)
    key = hashlib.sha256(json.dumps([url, expected, version]).encode()).hexdigest()
    shared = bool(expected or version)
    return fetch.cached(source, "", [file], f"url/{key}", shared=shared) / file.name


def _find_share(fetch: InputFetch, document: InputDocument) -> Path:
    """Kind `share`: a path relative to the folder of the pool's mounts, or to one mount."""
    mounts, path = fetch.access.mounts_dir, str(document["path"])
    if ".." in PurePosixPath(path).parts or PurePosixPath(path).is_absolute():
        raise _input_missing(f"{path!r} leaves the share")
    # The folder also contains log files of the mounts.
    mounted = (
        sorted(p for p in mounts.iterdir() if p.is_dir()) if mounts and mounts.is_dir() else []
    )
    if mounts is None or not mounted:
        raise _input_missing(
            "this pool mounts no file share: use another pool (`runner pool ls`), or blob:"
        )
    found = [folder / path for folder in (mounts, *mounted) if (folder / path).exists()]
    if len(found) == 1:
        return found[0]
    names = ", ".join(mount.name for mount in mounted)
    problem = "exists in several of them" if found else "exists in none of them"
    raise _input_missing(f"the pool mounts {names}; {path!r} {problem}")


def _fetch_run(fetch: InputFetch, document: InputDocument) -> Path:
    """Kind `run`: outputs of another run. `path` is a file, a folder or a glob."""
    run_id, path = str(document["run_id"]), str(document.get("path") or "")
    body = fetch.access.runs.get(f"{run_id}/result.json")
    if body is None:
        raise _input_missing(f"run {run_id} has no result yet: submit this run with `after`")
    result: dict[str, Any] = parse_json(body)
    if result.get("status") != "succeeded":
        raise _input_missing(f"run {run_id} {result.get('status')}, so it has no outputs")
    output = str(result.get("output") or "output/")
    outputs: list[dict[str, Any]] = result.get("outputs") or []
    known = [DataFile(str(o["path"]), int(o["size_bytes"]), str(o["sha256"])) for o in outputs]
    files = [file for file in known if is_selected_output(file.name, path)]
    if not files:
        names = ", ".join(file.name for file in known[:10]) or "nothing"
        raise _input_missing(f"run {run_id} has no output {path or 'at all'}; it wrote {names}")
    prefix = f"{run_id}/{output}"
    folder = fetch.cached(fetch.access.runs.transport, prefix, files, f"run/{prefix}")
    part = as_stored(path)
    return _select_part(folder, part if (folder / file_path(part)).exists() else None)


def _fetch_trials(fetch: InputFetch, document: InputDocument) -> Path:
    """Kind `trials`: the outputs of all trials of a sweep that succeeded, as links.

    Each trial has a folder. `trials.json` lists all trials with their parameters and metrics.
    """
    group: dict[str, Any] = parse_json(_read_required(fetch, group_blob(str(document["group"]))))
    later = LaterRun.folder(str(document["group"]))
    names = fetch.access.runs.list_names(later)
    retries = (LaterRun.parse(name, fetch.access.runs.get(name) or b"") for name in names)
    ordered = sorted(filter(None, retries), key=lambda run: run.number)
    newest = {run.trial: run.run_id for run in ordered}
    folder = fetch.work_dir / _FOLDER / TRIALS_INPUT
    folder.mkdir(parents=True, exist_ok=True)
    listed: list[dict[str, Any]] = []
    for name, task in group["tasks"].items():
        if "trial" not in task:
            continue
        fetch.check()
        run_id = newest.get(name, str(task["run_id"]))
        entry = _trial_result(fetch, name, run_id, task["trial"])
        if entry["status"] == "succeeded":
            _link_files(_run_files(fetch, run_id), folder / name)
        listed.append(entry)
    (folder / "trials.json").write_text(json.dumps(listed, indent=2), encoding="utf-8")
    missing = [entry["trial"] for entry in listed if entry["status"] != "succeeded"]
    if len(missing) == len(listed):
        raise _input_missing("no trial succeeded")
    text = f"{len(listed) - len(missing)} of {len(listed)} trials"
    fetch.report(f"{text}; missing: {', '.join(missing)}" if missing else text)
    return folder


def _read_required(fetch: InputFetch, name: str) -> bytes:
    body = fetch.access.runs.get(name)
    if body is None:
        raise _input_missing(f"{name} was deleted")
    return body


def _trial_result(
    fetch: InputFetch, name: str, run_id: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entry of a trial in `trials.json`."""
    run: dict[str, Any] = parse_json(fetch.access.runs.get(f"{run_id}/run.json") or b"{}")
    result: dict[str, Any] = parse_json(fetch.access.runs.get(f"{run_id}/result.json") or b"{}")
    trial: dict[str, Any] = run.get("trial") or {}
    return {
        "trial": name,
        "run_id": run_id,
        "status": result.get("status") or "missing",
        "message": result.get("message"),
        "params": swept_parameters(read_parameters(run), trial.get("params") or params),
        "metrics": result.get("metrics") or {},
    }


def _run_files(fetch: InputFetch, run_id: str) -> Path | None:
    """Download all outputs of a run that succeeded. Return the folder, or None without outputs."""
    result: dict[str, Any] = parse_json(_read_required(fetch, f"{run_id}/result.json"))
    outputs: list[dict[str, Any]] = result.get("outputs") or []
    files = [DataFile(str(o["path"]), int(o["size_bytes"]), str(o["sha256"])) for o in outputs]
    if not files:
        return None
    prefix = f"{run_id}/{result.get('output') or 'output/'}"
    return fetch.cached(fetch.access.runs.transport, prefix, files, f"run/{prefix}")


def _link_files(source: Path | None, target: Path) -> None:
    """Create `target` with a link to each file in `source`, which may be None."""
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")) if source is not None else ():
        if path.is_file():
            link = target / path.relative_to(source or path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)


def _select_part(folder: Path, part: str | None) -> Path:
    """Return the path of `part` in the folder, or the folder if it is None."""
    if part is None:
        return folder
    part = file_path(part)
    if ".." in PurePosixPath(part).parts or PurePosixPath(part).is_absolute():
        raise _input_missing(f"{part!r} is not a name inside the input")
    return folder / part


def _input_missing(message: str) -> StageFailedError:
    return StageFailedError(STEP, "InputMissing", message)


KINDS: Mapping[str, Callable[[InputFetch, InputDocument], Path]] = {
    "path": _fetch_uploaded,
    "dataset": _fetch_uploaded,
    "blob": _fetch_blob,
    "url": _fetch_url,
    "share": _find_share,
    "run": _fetch_run,
    TRIALS_INPUT: _fetch_trials,
}


class UrlRefusedError(StorageRequestError):
    """The server refused a request permanently. The message needs no further context."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(status, "", message)

    def __str__(self) -> str:
        return str(self.args[0]).removesuffix(f": {self.status}")


class UrlSource:
    """A download source for the data cache that has one file. Methods ignore its name."""

    def __init__(self, url: str, retry_budget: RetryBudget, *, hashed: bool = False) -> None:
        self._url = url
        self._retry_budget = retry_budget
        self._hashed = hashed  # the hash detects a mixture of two versions
        from urllib.request import build_opener  # noqa: PLC0415  few runs have such an input

        from runner.protocol.notifying.redirects import RedirectPolicy  # noqa: PLC0415

        self._opener = build_opener(RedirectPolicy(self._may_follow))
        self._failing_since: float | None = None
        self.etag: str | None = None
        check_url(url, url)

    def version(self) -> str | None:
        """Return the server's identifier of the file's version, or None."""
        last: Exception | None = None
        for _ in self._retry_budget.tries():
            try:
                with self.open("", 0) as response:
                    headers = response.headers
                    etag, date = headers.get("ETag"), headers.get("Last-Modified")
                    # A transfer can be resumed only with a strong ETag (RFC 9110, 13.1.5).
                    self.etag = None if etag is None or etag.startswith("W/") else etag
                    return f"{etag} {date} {response.length}" if etag or date else None
            except (OSError, http.client.HTTPException) as err:
                last = err
        raise UrlRefusedError(f"GET {redact_url(self._url)}: no answer ({last})")

    def open(
        self, name: str, first_byte: int = 0, etag: str | None = None
    ) -> http.client.HTTPResponse:
        """Start to read at `first_byte`. A server without ranges answers with 200 and byte 0.

        Raises:
            StorageRequestError: the server refused the request, or a retry would not help.
            OSError, HTTPException: a temporary failure.
        """
        del name
        from urllib.request import Request  # noqa: PLC0415

        request = Request(self._url)  # noqa: S310 - checked by check_url
        request.add_header("Accept-Encoding", "identity")
        if first_byte and (etag or self._hashed):
            request.add_header("Range", f"bytes={first_byte}-")
        if first_byte and etag:
            request.add_header("If-Range", etag)
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=URL_TIMEOUT_S)
        except urllib.error.HTTPError as err:
            err.close()
            if err.code in TRANSIENT_STATUS:
                raise ConnectionError(f"GET {redact_url(self._url)}: {err.code}") from err
            raise UrlRefusedError(
                f"GET {redact_url(self._url)}: {err.code} {err.reason}", err.code
            ) from err
        except urllib.error.URLError as err:
            self._raise_if_permanent(err)
            raise
        self._failing_since = None
        if etag and response.headers.get("ETag", etag) != etag:
            response.close()
            raise UrlRefusedError(f"GET {redact_url(self._url)}: it changed during the download")
        if (response.length or 0) + first_byte > MAX_URL_BYTES:
            response.close()
            raise UrlRefusedError(
                f"GET {redact_url(self._url)}: larger than {MAX_URL_BYTES >> 30} GiB"
            )
        return response

    def _may_follow(self, url: str) -> bool:
        check_url(url, self._url)
        return True

    def _raise_if_permanent(self, err: urllib.error.URLError) -> None:
        """Raise UrlRefusedError for an invalid certificate, or after a minute of failures."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        certificate = isinstance(err.reason, ssl.SSLCertVerificationError)
        if certificate or now - self._failing_since > URL_UNREACHABLE_AFTER_S:
            raise UrlRefusedError(f"GET {redact_url(self._url)}: {err.reason}") from err

    def close(self) -> None:
        """Do nothing: each read has its own connection."""


def check_url(url: str, first: str) -> None:
    """Raise UrlRefusedError unless `url` is https, or http of this machine.

    `first` is the address before redirects, which must be http of this machine in the second case.
    """
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and _is_loopback(url) and _is_loopback(first):
        return
    what = f"GET {redact_url(first)}"
    what += "" if url == first else f": redirected to {redact_url(url)}"
    raise UrlRefusedError(f"{what}: only https is allowed")


def redact_url(url: str) -> str:
    """Return the address without its user and query parts, which may be secrets."""
    parts = urlsplit(url)
    query = "?***" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}"


def _is_loopback(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme != "http":
        return False
    if parts.hostname == "localhost":
        return True
    import ipaddress  # noqa: PLC0415

    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
