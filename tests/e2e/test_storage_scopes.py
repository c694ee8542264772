"""Signatures for parts of a container: what scopes.js allows, and what it refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import random
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from azure.storage.blob import BlobServiceClient, ContainerClient

from runner.azure.auth.credentials import Connection, connect
from runner.azure.storage.blobs import ensure_containers
from runner.core.home import HomePaths
from runner.core.planning.plan import StorageScopes
from runner.core.progress import ignore_progress
from runner.core.settings import load_settings
from runner.flows.local import azurite, services
from runner.flows.local.state import ACCOUNT, LocalState, ensure_keys, find_process, local_outputs
from runner.node.storage.auth import SasCredential
from runner.node.storage.blobs import ContainerClient as NodeContainer
from runner.node.storage.http import StorageRequestError, Transport
from runner.node.storage.retries import RetryBudget
from tests.e2e.conftest import Cli, new_home

pytestmark = pytest.mark.attack
HOUR = timedelta(hours=1)
BLOCK = {"x-ms-blob-type": "BlockBlob"}
APPEND = {"x-ms-blob-type": "AppendBlob"}
NEW = {"If-None-Match": "*"}
BLOCK_ID = quote(base64.b64encode(b"00000000"))
LATEST = f"<BlockList><Latest>{unquote(BLOCK_ID)}</Latest></BlockList>".encode()
ENTRIES = (
    "rlaw~mine-1/",
    "rlawd~mine-1/checkpoints/",
    "rc=mine-1/run.json",
    "rc=mine-1/result.json",
    "w=index/mine-1",
    "w=by-time/79738878856994-mine-1",
    "r=before-1/result.json",
    "rl~sweeps/s-1/trials/",
    "rw=sweeps/s-1/trials/1",
    "rcm~files/",
    "rlaw~night-********-******-****/",
    f"r~{quote('ünder [a].*')}/",
)


@dataclass(frozen=True)
class Storage:
    """An Azurite with the scripts of the local services, and a signature of it."""

    connection: Connection
    port: int
    sas: str

    def send(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: Mapping[str, str] = {},
        body: bytes = b"",
        sas: str | None = None,
    ) -> tuple[int, bytes]:
        """Send a request to a path below the account, exactly as given."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        given = "&".join(part for part in (query, self.sas if sas is None else sas) if part)
        try:
            line.putrequest(method, f"{path}?{given}", skip_host=True, skip_accept_encoding=True)
            sent = {"Host": f"127.0.0.1:{self.port}", "x-ms-version": "2021-12-02", **headers}
            for name, value in sent.items():
                line.putheader(name, value)
            line.putheader("Content-Length", str(len(body)))
            line.endheaders(body)
            response = line.getresponse()
            return response.status, response.read()
        finally:
            line.close()

    def container(self, name: str) -> ContainerClient:
        service: BlobServiceClient = self.connection.blob_service()
        return service.get_container_client(name)

    def content(self) -> dict[str, bytes]:
        """Return all blobs, which an attack must not change."""
        found: dict[str, bytes] = {}
        for name in ("runs", "models", "data"):
            container = self.container(name)
            for blob in container.list_blobs(include=["metadata"]):
                text = container.download_blob(blob.name).readall()
                found[f"{name}/{blob.name}"] = text + repr(blob.metadata).encode()
        return found

    def sign(self, *entries: str, container: str = "runs", lifetime: timedelta = HOUR) -> str:
        places = {"runs": (), "data": (), "models": (), container: entries}
        scopes = StorageScopes(places["runs"], places["data"], places["models"])
        return self.connection.node_storage(scopes, lifetime)[container]["sas"]


@contextmanager
def running_azurite(home: Path, *, scripts: bool = True) -> Generator[Storage]:
    paths = HomePaths(new_home(home))
    paths.blob_data.mkdir(parents=True)
    state = LocalState(services.choose_port(), services.choose_port(), nodes=1, slots=1)
    keys = ensure_keys(paths)
    program = azurite.ensure_azurite(paths, ignore_progress)
    launch = services.blob_launch(paths, state.blob_port, keys, program)
    if not scripts:
        script = launch.arguments.index(str(program.script))
        launch = replace(launch, arguments=[str(program.node), *launch.arguments[script:]])
    record = services.spawn(launch)
    try:
        services.wait_ready(launch, record, state, services.log_size(launch.log))
        connection = Connection(local_outputs(state), keys)
        ensure_containers(connection)
        yield Storage(connection, state.blob_port, "")
    finally:
        if process := find_process(record, launch.marker):
            services.stop_process([process])


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Storage]:
    with running_azurite(tmp_path_factory.mktemp("scopes") / "home") as found:
        yield replace(found, sas=found.sign(*ENTRIES))


@pytest.fixture(scope="module", autouse=True)
def others(storage: Storage) -> None:
    """Store the run of the signature, and what it must not reach."""
    for name in ("mine-1/run.json", "mine-1/a.txt", "other-1/run.json", "other-1/result.json",
                 "other-1/output/model.bin", "other-1/checkpoints/1/manifest.json",
                 "before-1/result.json", "before-1/output/x", "index/other-1", "index/mine-1",
                 "sweeps/s-1/trials/1", "sweeps/s-1/trials/2", "sweeps/s-2/trials/1",
                 "groups/g.json", "waiting/s-1.json", "mine-10/a.txt", "files/a"):  # fmt: skip
        storage.container("runs").upload_blob(name, b"whole", metadata={"of": "victim"})
    storage.container("models").upload_blob("theirs/versions/1.json", b"whole")


REFUSED = [
    # Other runs, their records and reports.
    ("PUT", "/runs/other-1/output/model.bin", "", BLOCK),
    ("PUT", "/runs/other-1/result.json", "", BLOCK | NEW),
    ("PUT", "/runs/other-1/run.json", "", BLOCK),
    ("DELETE", "/runs/other-1/checkpoints/1/manifest.json", "", {}),
    ("DELETE", "/runs/other-1/output/model.bin", "", {}),
    ("GET", "/runs/other-1/output/model.bin", "", {}),
    ("HEAD", "/runs/other-1/output/model.bin", "", {}),
    ("PUT", "/runs/mine-10/a.txt", "", BLOCK),
    ("PUT", "/runs/index/other-1", "", BLOCK),
    ("PUT", "/runs/index/mine-1/x", "", BLOCK),
    ("GET", "/runs/index/mine-1", "", {}),
    ("PUT", "/runs/by-time/79738878856994-other-1", "", BLOCK),
    ("GET", "/runs/by-time/79738878856994-mine-1", "", {}),
    ("PUT", "/runs/sweeps/s-1/trials/2", "", BLOCK),
    ("PUT", "/runs/sweeps/s-2/trials/1", "", BLOCK),
    ("GET", "/runs/sweeps/s-2/trials/1", "", {}),
    ("PUT", "/runs/groups/g.json", "", BLOCK),
    ("PUT", "/runs/waiting/s-1.json", "", BLOCK),
    ("PUT", "/runs/before-1/result.json", "", BLOCK),
    ("GET", "/runs/before-1/output/x", "", {}),
    ("PUT", "/runs/night-20261128-193000-abcde/x", "", BLOCK),
    ("PUT", "/runs/night-20261128-19300/-abcd/x", "", BLOCK),
    ("GET", "/runs/" + quote("ünder a.*") + "/x", "", {}),
    # Its own documents, once written.
    ("PUT", "/runs/mine-1/run.json", "", BLOCK),
    ("PUT", "/runs/mine-1/run.json", "", BLOCK | {"If-None-Match": "x"}),
    ("PUT", "/runs/mine-1/run.json", "", BLOCK | NEW | {"If-Match": "*"}),
    ("PUT", "/runs/mine-1/run.json", "comp=metadata", {}),
    ("PUT", "/runs/mine-1/run.json", "comp=blocklist", {}),
    ("DELETE", "/runs/mine-1/run.json", "", {}),
    ("DELETE", "/runs/mine-1/a.txt", "", {}),
    ("PUT", "/runs/files/a", "", BLOCK),
    ("PUT", "/runs/files/a", "comp=blocklist", {}),
    # Listings.
    ("GET", "/runs", "restype=container&comp=list", {}),
    ("GET", "/runs", "restype=container&comp=list&prefix=", {}),
    ("GET", "/runs", "restype=container&comp=list&prefix=mine-1", {}),
    ("GET", "/runs", "restype=container&comp=list&prefix=other-1/", {}),
    ("GET", "/runs", "restype=container&comp=list&prefix=index/mine-1", {}),
    ("GET", "/runs", "restype=container&comp=list&prefix=mine-1/&prefix=other-1/", {}),
    ("GET", "/runs", "restype=container&comp=list&prefix=mine-1/&prefix[]=other-1/", {}),
    ("GET", "/runs", "restype=container&comp=list&prefix=mine-1/&include=snapshots", {}),
    ("GET", "/runs", "restype=container&comp=blobs&where=x&prefix=mine-1/", {}),
    ("GET", "/runs/", "restype=container&comp=list&prefix=mine-1/", {}),
    ("GET", "", "comp=list", {}),
    ("GET", "/", "comp=list&prefix=mine-1/", {}),
    # The container and the account.
    ("DELETE", "/runs", "restype=container", {}),
    ("PUT", "/runs", "restype=container&comp=acl", {"x-ms-blob-public-access": "container"}),
    ("PUT", "/runs", "restype=container&comp=metadata", {}),
    ("PUT", "/runs", "restype=container&comp=lease", {"x-ms-lease-action": "acquire"}),
    ("HEAD", "/runs", "restype=container", {}),
    ("GET", "/runs", "restype=container", {}),
    ("GET", "/runs", "restype=account&comp=properties", {}),
    ("POST", "/runs", "restype=container&comp=batch", {"Content-Type": "multipart/mixed"}),
    ("POST", "", "comp=batch", {"Content-Type": "multipart/mixed"}),
    ("POST", "", "restype=service&comp=userdelegationkey", {}),
    ("PUT", "", "restype=service&comp=properties", {}),
    # Operations that no agent needs, on its own blobs.
    ("PUT", "/runs/mine-1/a.txt", "comp=lease", {"x-ms-lease-action": "acquire"}),
    ("PUT", "/runs/mine-1/a.txt", "comp=tier", {"x-ms-access-tier": "Cool"}),
    ("PUT", "/runs/mine-1/a.txt", "comp=tags", {}),
    ("GET", "/runs/mine-1/a.txt", "comp=tags", {}),
    ("PUT", "/runs/mine-1/a.txt", "comp=snapshot", {}),
    ("PUT", "/runs/mine-1/a.txt", "comp=undelete", {}),
    ("PUT", "/runs/mine-1/a.txt", "comp=properties", {}),
    ("PUT", "/runs/mine-1/a.txt", "comp=page", {"x-ms-page-write": "clear"}),
    ("PUT", "/runs/mine-1/a.txt", "comp=seal", {}),
    ("PUT", "/runs/mine-1/a.txt", "comp=immutabilityPolicies", {}),
    ("POST", "/runs/mine-1/a.txt", "comp=query", {}),
    ("GET", "/runs/mine-1/a.txt", "comp=blocklist", {}),
    ("GET", "/runs/mine-1/a.txt", "snapshot=2026-11-28T19:00:00.0000000Z", {}),
    ("GET", "/runs/mine-1/a.txt", "versionid=2026-11-28T19:00:00.0000000Z", {}),
    ("PUT", "/runs/mine-1/p", "", {"x-ms-blob-type": "PageBlob", "x-ms-blob-content-length": "0"}),
    ("PUT", "/runs/mine-1/a.txt", "", BLOCK | {"x-ms-tags": "a=b"}),
    ("DELETE", "/runs/mine-1/checkpoints/x", "", {"x-ms-delete-snapshots": "include"}),
    ("PATCH", "/runs/mine-1/a.txt", "", {}),
    ("OPTIONS", "/runs/mine-1/a.txt", "", {}),
    # Another method, account or credential than the request shows.
    ("GET", "/runs/mine-1/a.txt", "", {"X-HTTP-Method": "DELETE"}),
    ("GET", "/runs/mine-1/a.txt", "", {"X-HTTP-Method-Override": "DELETE"}),
    ("PUT", "/runs/mine-1/a.txt", "", BLOCK | {"Authorization": "SharedKey runnerlocal:x"}),
    ("GET", "/runs/mine-1/a.txt", "comp=&comp=tags", {}),
    ("GET", "/runs/mine-1/a.txt", "sr=c&sp=rwdl", {}),
    ("GET", "/runs/mine-1/a.txt", "%63omp=tags", {}),
    ("GET", "/runs/mine-1/a.txt", "COMP=tags", {}),
    ("GET", "/models/theirs/versions/1.json", "", {}),
    ("PUT", "/models/theirs/versions/1.json", "", BLOCK),
    ("GET", "/RUNS/mine-1/a.txt", "", {}),
    ("GET", "/%72uns/mine-1/a.txt", "", {}),
    ("GET", "/$root/mine-1/a.txt", "", {}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "query", "headers"), REFUSED)
def test_request_beyond_the_scope_is_refused(
    storage: Storage, method: str, path: str, query: str, headers: Mapping[str, str]
) -> None:
    before = storage.content()
    body = LATEST if "blocklist" in query else b"evil" if method == "PUT" else b""
    status, text = storage.send(method, f"/{ACCOUNT}{path}", query, headers, body)
    assert (status, b"whole" in text, b"other-1" in text) == (403, False, False)
    assert storage.content() == before


ESCAPES = [
    "mine-1/../other-1/run.json",
    "mine-1/%2e%2e/other-1/run.json",
    "mine-1%2F..%2Fother-1%2Frun.json",
    "mine-1/%2E./other-1/run.json",
    "mine-1/..%2Fother-1/run.json",
    "mine-1/..%5Cother-1/run.json",
    "mine-1\\..\\other-1\\run.json",
    "mine-1/%252e%252e/other-1/run.json",
    "mine-1/./../other-1/run.json",
    "/mine-1/a.txt",
    "./mine-1/a.txt",
    "//other-1/run.json",
    "MINE-1/a.txt",
    "other-1/run.json#mine-1/",
    "other-1/run.json%00mine-1/",
    "mine-1%00/a.txt",
    "mine-1%0a/a.txt",
    "mine-1%5Ca.txt",
    "mine-1;/a.txt",
    "%6dine-10/a.txt",
    "other%2D1/run.json",
    "mine-1%",
    "mine-1/%ff%fe",
    "mine-1/%c0%ae%c0%ae/other-1/run.json",
    "mine-1/%e0%80%ae%e0%80%ae/other-1/run.json",
]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("name", ESCAPES)
def test_encoded_name_reaches_no_other_run(storage: Storage, name: str, method: str) -> None:
    before = storage.content()
    headers = BLOCK if method == "PUT" else {}
    status, text = storage.send(method, f"/{ACCOUNT}/runs/{name}", "", headers)
    inside = status == 404 or (method == "PUT" and status == 201)  # a strange name of its own
    assert inside or status in (400, 403)
    assert b"whole" not in text
    changed = {n for n, text in storage.content().items() if before.get(n) != text}
    assert all(each.startswith("runs/mine-1/") for each in changed)
    for each in changed:
        storage.container("runs").delete_blob(each.removeprefix("runs/"))
    assert storage.content() == before


@pytest.mark.parametrize(
    "path",
    [
        "/{account}-secondary/runs/mine-1/a.txt",
        "/runs/mine-1/a.txt",
        "//{account}/runs/mine-1/a.txt",
        "/%72unnerlocal/runs/mine-1/a.txt",
        "http://127.0.0.1/{account}/runs/mine-1/a.txt",
        "/x/../{account}/runs/mine-1/a.txt",
        "*",
    ],
)
def test_another_spelling_of_the_account_is_refused(storage: Storage, path: str) -> None:
    status, text = storage.send("GET", path.format(account=ACCOUNT))
    assert status in (400, 403)
    assert b"whole" not in text


@pytest.mark.parametrize(
    "host", [f"{ACCOUNT}.blob.localhost", "other.blob.core.windows.net", f"{ACCOUNT}.x:1"]
)
def test_host_does_not_change_the_account(storage: Storage, host: str) -> None:
    status, text = storage.send(
        "GET", "/runs/mine-1/a.txt", "", {"Host": host, "Origin": f"http://{host}"}
    )
    assert (status, b"whole" in text) == (403, False)


def _changed(sas: str, change: Mapping[str, str | None]) -> str:
    parts = dict(part.split("=", 1) for part in sas.split("&"))
    return "&".join(f"{k}={v}" for k, v in {**parts, **change}.items() if v is not None)


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "rlawd~"},
        {"scope": "rlawd~,rlaw~mine-1/"},
        {"scope": None},
        {"scope": ""},
        {"se": "2099-01-01T00:00:00Z"},
        {"se": None},
        {"sv": "2021-12-02"},
        {"sv": None},
        {"sv": "runner-2"},
        {"sig": None},
        {"sig": ""},
        {"sv": "2021-12-02", "sr": "c", "sp": "racwdl"},
        {"sv": "2021-12-02", "sr": "c", "sp": "racwdl", "scope": None},
        {"ss": "b", "srt": "sco", "sp": "racwdl"},
        {"si": "policy"},
        {"%73cope": "x", "scope": None},
    ],
)
def test_changed_signature_is_refused(storage: Storage, change: Mapping[str, str | None]) -> None:
    for path in ("other-1/run.json", "mine-1/a.txt"):
        sas = _changed(storage.sas, change)
        status, text = storage.send("GET", f"/{ACCOUNT}/runs/{path}", sas=sas)
        assert (status, b"whole" in text) == (403, False)


def test_second_scope_and_second_signature_are_refused(storage: Storage) -> None:
    for more in ("scope=rlawd~", "sig=x", "se=2099-01-01T00:00:00Z", "sv=runner-1"):
        for sas in (f"{storage.sas}&{more}", f"{more}&{storage.sas}"):
            assert storage.send("GET", f"/{ACCOUNT}/runs/mine-1/a.txt", sas=sas)[0] == 403


def test_signature_of_another_container_is_refused(storage: Storage) -> None:
    for_models = storage.sign("rlawd~", container="models")
    assert storage.send("GET", f"/{ACCOUNT}/runs/mine-1/a.txt", sas=for_models)[0] == 403
    path = f"/{ACCOUNT}/models/theirs/versions/1.json"
    assert storage.send("GET", path, sas=for_models) == (200, b"whole")
    assert storage.send("GET", path, sas=storage.sas)[0] == 403


def test_expired_signature_is_refused_and_named(storage: Storage) -> None:
    sas = storage.sign("rlaw~mine-1/", lifetime=-timedelta(minutes=1))
    url = f"http://127.0.0.1:{storage.port}/{ACCOUNT}/runs"
    runs = NodeContainer(Transport(url, SasCredential(sas), RetryBudget(20.0)))
    with pytest.raises(StorageRequestError, match="access to storage ended at"):
        runs.get("mine-1/a.txt")


def test_azurite_without_the_script_accepts_nothing_and_is_named(tmp_path: Path) -> None:
    with running_azurite(tmp_path / "home", scripts=False) as plain:
        sas = plain.sign("rlaw~mine-1/")
        for path, query in (("/mine-1/a.txt", ""), ("", "restype=container&comp=list")):
            assert plain.send("GET", f"/{ACCOUNT}/runs{path}", query, sas=sas)[0] == 403
        url = f"http://127.0.0.1:{plain.port}/{ACCOUNT}/runs"
        runs = NodeContainer(Transport(url, SasCredential(sas), RetryBudget(20.0)))
        with pytest.raises(StorageRequestError, match="`runner local up` restarts") as caught:
            runs.get("mine-1/a.txt")
        assert not caught.value.is_retryable


def test_refused_body_does_not_disturb_the_connection(storage: Storage) -> None:
    url = f"http://127.0.0.1:{storage.port}/{ACCOUNT}/runs"
    runs = NodeContainer(Transport(url, SasCredential(storage.sas), RetryBudget(20.0)))
    for size in (0, 1, 5 << 20):
        with pytest.raises(StorageRequestError, match="does not include this operation"):
            runs.put("other-1/x", bytes(size))
        assert runs.get("mine-1/a.txt") == b"whole"


@pytest.mark.parametrize("kind", [BLOCK, APPEND])
def test_document_that_a_task_may_create_is_created_once(
    storage: Storage, kind: dict[str, str]
) -> None:
    path = f"/{ACCOUNT}/runs/mine-1/result.json"
    assert storage.send("PUT", path, "", BLOCK | NEW, b"first")[0] == 201
    assert storage.send("PUT", path, "", kind | NEW)[0] == 409
    assert storage.send("PUT", path, f"comp=block&blockid={BLOCK_ID}", {}, b"x")[0] == 201
    assert storage.send("PUT", path, "comp=blocklist", NEW, LATEST)[0] == 409
    assert storage.send("PUT", path, "comp=appendblock", {}, b"x")[0] == 403
    assert storage.send("GET", path) == (200, b"first")
    storage.container("runs").delete_blob("mine-1/result.json")


def test_signature_with_the_account_key_instead_of_its_own_key_is_refused(storage: Storage) -> None:
    key = base64.b64decode(storage.connection.blob_service().credential.account_key)
    text = "\n".join(("2099-01-01T00:00:00Z", ACCOUNT, "runs", "rlawd~"))
    sig = base64.urlsafe_b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()
    sas = f"sv=runner-1&se=2099-01-01T00:00:00Z&scope=rlawd~&sig={sig.rstrip('=')}"
    assert storage.send("GET", f"/{ACCOUNT}/runs/mine-1/a.txt", sas=sas)[0] == 403


@pytest.mark.parametrize(
    "name", ["other-1/run.json", "before-1/output/x", "mine-1/../other-1/run.json"]
)
@pytest.mark.parametrize("signed", [True, False])
def test_copy_source_needs_a_signature_that_reads_it(
    storage: Storage, name: str, signed: bool
) -> None:
    source = f"http://127.0.0.1:{storage.port}/{ACCOUNT}/runs/{name}"
    target = f"/{ACCOUNT}/runs/mine-1/copy"
    headers = {"x-ms-copy-source": f"{source}?{storage.sas}" if signed else source}
    for more in ({}, BLOCK, {"x-ms-requires-sync": "true"}):
        assert storage.send("PUT", target, "", {**headers, **more})[0] == 403
    assert storage.send("PUT", target, "comp=incrementalcopy", headers)[0] == 403
    assert storage.send("PUT", target, f"comp=block&blockid={BLOCK_ID}", headers)[0] in (403, 404)
    assert storage.send("PUT", target, "comp=blocklist", {}, LATEST)[0] == 400, "no block"


def test_copy_within_the_scope_works(storage: Storage) -> None:
    source = f"http://127.0.0.1:{storage.port}/{ACCOUNT}/runs/mine-1/a.txt?{storage.sas}"
    query = f"comp=block&blockid={BLOCK_ID}"
    target = f"/{ACCOUNT}/runs/files/copied"
    for expected in (201, 409):  # what was created once is not replaced
        assert storage.send("PUT", target, query, {"x-ms-copy-source": source})[0] == 201
        assert storage.send("PUT", target, "comp=blocklist", NEW, LATEST)[0] == expected
    assert storage.container("runs").download_blob("files/copied").readall() == b"whole"
    storage.container("runs").delete_blob("files/copied")
    elsewhere = {"x-ms-copy-source": source.replace("127.0.0.1", "example.com")}
    assert storage.send("PUT", target, query, elsewhere)[0] >= 400


@dataclass(frozen=True)
class Model:
    """What scopes.js has to decide, in a few lines."""

    entries: Sequence[str]
    parsed: list[tuple[int, int, bool, str, re.Pattern[str]]] = field(default_factory=list)

    def rights(self, name: str, *, is_prefix: bool) -> str:
        best = (-1, 0, False), ""
        for entry in self.entries:
            rights, kind, raw = re.split("([~=])", entry, maxsplit=1)
            parts = [re.escape(unquote(part)) for part in raw.split("*")]
            pattern = re.compile("[0-9a-z]".join(parts) + ("" if kind == "~" else r"\Z"), re.S)
            order = len(unquote(raw)), -raw.count("*"), kind == "="
            if pattern.match(name) and not (is_prefix and kind == "=") and order > best[0]:
                best = order, rights
        return best[1]

    def allows(self, method: str, name: str, comp: str, *, new: bool) -> bool:
        parts = name.split("/")
        if comp == "list":
            return "l" in self.rights(name, is_prefix=True)
        if re.search(r"[\x00-\x1f\x7f\\]", name) or {".", ".."} & set(parts) or not name:
            return False
        needed = {
            ("GET", ""): "r",
            ("HEAD", ""): "r",
            ("DELETE", ""): "d",
            ("PUT", ""): "wc" if new else "w",
            ("PUT", "block"): "wc",
            ("PUT", "blocklist"): "wc" if new else "w",
            ("PUT", "appendblock"): "a",
            ("PUT", "metadata"): "wm",
        }.get((method, comp), "")
        return bool(set(needed) & set(self.rights(name, is_prefix=False)))


PARTS = ("mine-1", "mine-10", "other-1", "before-1", "checkpoints", "run.json", "result.json",
         "index", "sweeps", "s-1", "s-2", "trials", "1", "2", "files", "ünder [a].*", "a b", "..",
         "night-20261128-193000-abcd", "night-2026112-193000-abcd", "night-AAAAAAAA-193000-abcd",
         "", ".", "%2e", "x\\y", "\x01", "😀", "+", "#", "?")  # fmt: skip
COMPS = ("", "list", "block", "blocklist", "appendblock", "metadata", "lease", "tags", "copy")


def _spelled(rng: random.Random, name: str) -> str:
    """Return the name with a random encoding of each character."""
    written = (
        quote(char, safe="") if rng.random() < 0.3 or char not in "abcdefghijklmnop-/." else char
        for char in name
    )
    return "".join(written)


@pytest.mark.parametrize("seed", range(4))
def test_decisions_equal_those_of_a_small_model(storage: Storage, seed: int) -> None:
    rng = random.Random(seed)
    allowed = 0
    for _ in range(400):
        entries = rng.sample(ENTRIES, rng.randint(0, len(ENTRIES)))
        known = [unquote(re.split("[~=]", one, maxsplit=1)[1]) for one in entries]
        begin = rng.choice([*known, ""]) if rng.random() < 0.8 else ""
        name = begin + "/".join(rng.choices(PARTS, k=rng.randint(0, 3)))
        name = name.replace("********-******-****", "20261128-193000-abcd")
        method, comp = rng.choice(("GET", "HEAD", "PUT", "PUT", "PUT", "DELETE")), rng.choice(COMPS)
        new = rng.random() < 0.5
        model, sas = Model(entries), storage.sign(*entries)
        headers = dict(NEW) if new else {}
        if comp == "list":
            method, path = "GET", f"/{ACCOUNT}/runs"
            query = f"restype=container&comp=list&prefix={_spelled(rng, name)}"
        else:
            path = f"/{ACCOUNT}/runs/{_spelled(rng, name)}"
            query = f"comp={comp}" if comp else ""
            query += f"&blockid={BLOCK_ID}" if comp == "block" else ""
            headers |= BLOCK if (method, comp) == ("PUT", "") else {}
        body = LATEST if comp == "blocklist" else b"x" if method == "PUT" else b""
        status, text = storage.send(method, path, query, headers, body, sas=sas)
        shown = (method, name, comp, new, entries, status, text)
        assert (status != 403) == model.allows(method, name, comp, new=new), shown
        allowed += status != 403
    assert allowed > 20


VICTIM = """
import os, pathlib, time
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "model.bin").write_bytes(b"whole")
pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state").write_bytes(b"whole")
time.sleep(6)  # until a checkpoint is committed
"""


def _task_storage(cli: Cli, run_id: str) -> dict[str, Any]:
    """Return RUNNER_STORAGE of a run, which its script can read in the memory of the agent."""
    connection = connect(load_settings({}, cwd=cli.cwd, env=cli.env))
    runs = connection.blob_service().get_container_client("runs")
    job_id = json.loads(runs.download_blob(f"{run_id}/run.json").readall())["batch"]["job_id"]
    task = connection.batch_client().get_task(job_id, run_id)
    named = {one.name: one.value for one in task.environment_settings or ()}
    return json.loads(named["RUNNER_STORAGE"] or "")


@pytest.mark.slow
def test_run_cannot_reach_another_run_with_its_own_access(
    cli: Cli, script: Callable[[str], Path]
) -> None:
    folder = script(VICTIM)
    (folder / "train.yaml").write_text("checkpoints: {interval: 1s}\nmodel: victims\n")
    victim = cli.json("train", folder)["run_id"]
    (folder / "train.yaml").write_text("model: attackers\n")
    attacker = cli.json("train", folder)["run_id"]
    connection = connect(load_settings({}, cwd=cli.cwd, env=cli.env))
    storage, budget = _task_storage(cli, attacker), RetryBudget(20.0)
    access = {
        name: NodeContainer(
            Transport(storage[name]["url"], SasCredential(storage[name]["sas"]), budget)
        )
        for name in ("runs", "data", "models")
    }
    blobs = {
        name: [
            blob.name for blob in connection.blob_service().get_container_client(name).list_blobs()
        ]
        for name in ("runs", "models")
    }
    theirs = [
        ("runs", name) for name in blobs["runs"] if victim in name or name.startswith("code/")
    ]
    theirs += [("models", name) for name in blobs["models"] if not name.startswith("attackers/")]
    assert {"output/model.bin", "result.json", "run.json"} < {
        name.removeprefix(f"{victim}/") for _, name in theirs
    }
    assert any("/checkpoints/" in name for _, name in theirs)
    assert any(name.startswith("victims/versions/") for _, name in theirs)
    for container, name in theirs:
        attacks: list[Callable[[], object]] = [
            partial(access[container].get, name),
            partial(access[container].head, name),
            partial(access[container].put, name, b"evil"),
            partial(access[container].delete, name),
            partial(access[container].reject_pending_appends, name),
        ]
        for attack in attacks:
            with pytest.raises(StorageRequestError) as caught:
                attack()
            assert caught.value.status == 403, name
    for container, prefix in (("runs", ""), ("runs", f"{victim}/"), ("models", ""), ("data", "")):
        with pytest.raises(StorageRequestError):
            access[container].list_names(prefix)
    assert access["runs"].get(f"{attacker}/run.json") is not None, "its own run is readable"
    for name in ("run.json", "result.json"):
        with pytest.raises(StorageRequestError):
            access["runs"].put(f"{attacker}/{name}", b"{}")
    assert cli.json("show", victim)["state"] == "succeeded"
