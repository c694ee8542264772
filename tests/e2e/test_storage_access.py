"""Storage against other users of this machine, who reach its port but have no key."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import psutil
import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import (
    BlobServiceClient,
    ContainerClient,
    ContainerSasPermissions,
    UserDelegationKey,
    generate_blob_sas,
    generate_container_sas,
)

from batch_emulator.executor.blob_sas import user_delegation_key
from runner.core.home import HomePaths
from runner.flows.local.state import ACCOUNT, SEED, LocalState, load_state
from tests import plain_http
from tests.e2e.conftest import RUNNER, Cli, new_home, remove_outside
from tests.loopback import listening

_PUBLIC_KEY = (  # of every Azurite without AZURITE_ACCOUNTS
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_NOBODY = 65534
_BLOCK = {"x-ms-blob-type": "BlockBlob"}


@dataclass(frozen=True)
class Storage:
    """Storage of running local services, with a container that has one blob, `secret`."""

    cli: Cli
    state: LocalState
    keys: dict[str, str]
    container: ContainerClient

    @property
    def url(self) -> str:
        return f"{self.state.blob_endpoint}/{self.container.container_name}"

    def signed(self, seed: str, **given: Any) -> str:
        """Return a SAS for the container by a user whose key comes from `seed`."""
        now = datetime.now(UTC)
        key = UserDelegationKey()
        key.signed_oid, key.signed_tid, key.signed_service = str(uuid4()), str(uuid4()), "b"
        key.signed_start = f"{now - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
        key.signed_expiry = f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
        key.signed_version = "2021-12-02"
        user = (key.signed_oid, key.signed_tid, key.signed_start, key.signed_expiry)
        key.value = user_delegation_key(*user, key.signed_version, seed=seed)
        permission = ContainerSasPermissions(read=True, write=True, list=True, delete=True)
        name = self.container.container_name
        return generate_container_sas(
            ACCOUNT,
            name,
            user_delegation_key=key,
            permission=permission,
            expiry=now + timedelta(minutes=30),
            **given,
        )


def _storage(cli: Cli) -> Storage:
    paths = HomePaths(cli.home)
    state = load_state(paths)
    assert state is not None
    keys = json.loads(paths.keys.read_text())
    credential = {"account_name": ACCOUNT, "account_key": keys["storage"]}
    service = BlobServiceClient(state.blob_endpoint, credential, retry_total=0)
    container = service.create_container(f"attacked-{uuid4().hex}")
    container.upload_blob("secret", b"the secret")
    return Storage(cli, state, keys, container)


@pytest.fixture
def storage(cli: Cli) -> Generator[Storage]:
    cli.ok("local", "up")
    found = _storage(cli)
    yield found
    found.container.delete_container()


def _requests(url: str, sas: str) -> list[int]:
    """Read, list, write, change and delete with a SAS; return the statuses."""
    blob, new = f"{url}/secret?{sas}", f"{url}/new?{sas}"
    answers = [
        plain_http.request("GET", blob),
        plain_http.request("GET", f"{url}?restype=container&comp=list&{sas}"),
        plain_http.request("PUT", new, headers=_BLOCK, content=b"planted"),
        plain_http.request("PUT", f"{blob}&comp=metadata", headers={"x-ms-meta-a": "b"}),
        plain_http.request("DELETE", blob),
    ]
    return [answer.status_code for answer in answers]


@pytest.mark.attack
def test_public_seed_of_azurite_signs_nothing(storage: Storage) -> None:
    assert _requests(storage.url, storage.signed("")) == 5 * [403]
    assert list(storage.container.list_blob_names()) == ["secret"]
    # The same requests with the seed of this installation: the signatures are well-formed.
    assert _requests(storage.url, storage.signed(storage.keys[SEED])) == [200, 200, 201, 200, 202]


_FORGED_BY_NAME = """
import os, sys, requests
account = os.environ["AZURE_STORAGE_ACCOUNT"]
box, *signatures = sys.argv[1:]
url = f"https://{account}.blob.core.windows.net/{box}"
block = {"x-ms-blob-type": "BlockBlob"}
for sas in signatures:
    print(
        requests.get(f"{url}/secret?{sas}").status_code,
        requests.get(f"{url}?restype=container&comp=list&{sas}").status_code,
        requests.put(f"{url}/new?{sas}", data=b"planted", headers=block).status_code,
        requests.delete(f"{url}/secret?{sas}").status_code,
    )
print("BATCH_EMULATOR_STORAGE_SEED" in os.environ)
"""


@pytest.mark.attack
def test_public_seed_of_azurite_signs_nothing_for_azure_names(storage: Storage) -> None:
    own = storage.keys[SEED]
    signatures = [storage.signed(""), storage.signed("", protocol="https"), storage.signed(own)]
    name = storage.container.container_name
    program = (sys.executable, "-c", _FORGED_BY_NAME, name, *signatures)
    printed = storage.cli.ok("local", "exec", "--azure", "--", *program)
    assert printed.splitlines() == [*2 * ["403 403 403 403"], "200 200 201 202", "False"]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("devstoreaccount1", _PUBLIC_KEY),
        *((name, "") for name in ("constructor", "__proto__", "toString", "hasOwnProperty")),
    ],
)
def test_accounts_of_nobody_do_not_exist(storage: Storage, name: str, key: str) -> None:
    """Azurite finds the last four in the prototype of its table, with an empty key."""
    endpoint = f"http://127.0.0.1:{storage.state.blob_port}/{name}"
    service = BlobServiceClient(endpoint, {"account_name": name, "account_key": key}, retry_total=0)
    with pytest.raises(HttpResponseError, match="ResourceNotFound"):
        service.create_container("planted")


def _blob_sas(storage: Storage, name: str, permission: str) -> str:
    return generate_blob_sas(
        ACCOUNT,
        storage.container.container_name,
        name,
        account_key=storage.keys["storage"],
        permission=permission,
        expiry=datetime.now(UTC) + timedelta(minutes=30),
    )


class _SaysYes(BaseHTTPRequestHandler):
    """A server of the attacker, in whose answer every source of a copy exists."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815 - http.server names them


def _copy(storage: Storage, source: str, host: str, *, synchronous: bool) -> httpx.Response:
    """Copy a source to `mine` with a SAS for only that blob."""
    headers = {"x-ms-copy-source": source, "x-ms-version": "2021-12-02", "host": host}
    if synchronous:
        headers["x-ms-requires-sync"] = "true"
    url = f"{storage.url}/mine?{_blob_sas(storage, 'mine', 'cw')}"
    return plain_http.request("PUT", url, headers=headers)


@pytest.mark.attack
@pytest.mark.parametrize("synchronous", [False, True], ids=["start-copy", "copy"])
@pytest.mark.parametrize("vouched_by", ["", "127.0.0.1", "127.0.0.5"])
def test_sas_for_one_blob_copies_no_other_blob(
    storage: Storage, synchronous: bool, vouched_by: str
) -> None:
    """A server of the attacker, even at the same port, cannot vouch for the source."""
    port = storage.state.blob_port
    same_port = port if vouched_by == "127.0.0.5" else 0
    path = f"{ACCOUNT}/{storage.container.container_name}/secret"
    with listening(_SaysYes, at=(vouched_by or "127.0.0.1", same_port)) as url:
        host = urlsplit(url).netloc if vouched_by else f"127.0.0.1:{port}"
        for query in ("", "?sig=x", f"?{_blob_sas(storage, 'mine', 'cw')}"):
            answer = _copy(storage, f"http://{host}/{path}{query}", host, synchronous=synchronous)
            assert answer.status_code in (403, 404), answer.text
    assert list(storage.container.list_blob_names()) == ["secret"]


@pytest.mark.parametrize("synchronous", [False, True], ids=["start-copy", "copy"])
def test_copy_with_a_source_that_is_signed_too_is_made(storage: Storage, synchronous: bool) -> None:
    host = f"127.0.0.1:{storage.state.blob_port}"
    source = f"{storage.url}/secret?{_blob_sas(storage, 'secret', 'r')}"
    answer = _copy(storage, source, host, synchronous=synchronous)
    assert answer.status_code == 202, answer.text
    assert storage.container.download_blob("mine").readall() == b"the secret"


def test_copy_with_the_key_of_the_account_needs_no_more(storage: Storage) -> None:
    blob = storage.container.get_blob_client("mine")
    blob.start_copy_from_url(f"{storage.url}/secret")
    assert blob.download_blob().readall() == b"the secret"


@pytest.mark.attack
def test_services_listen_on_loopback_only_and_on_known_ports(storage: Storage) -> None:
    """Azurite's services for queues and tables do not run."""
    state = storage.state
    assert state.blob is not None
    assert state.batch is not None
    listening = {
        pid: sorted(
            (each.laddr.ip, each.laddr.port)
            for each in psutil.Process(pid).net_connections()
            if each.status == psutil.CONN_LISTEN
        )
        for pid in (state.blob.pid, state.batch.pid)
    }
    ports = sorted((state.batch_port, state.files_port))
    assert listening == {
        state.blob.pid: [("127.0.0.1", state.blob_port)],
        state.batch.pid: [("127.0.0.1", port) for port in ports],
    }


_READS_ALL = """
import os, sys
home, user = sys.argv[1], int(sys.argv[2])
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
paths = [
    os.path.join(top, name) for top, _, names in os.walk(home, onerror=None) for name in names
]
known = ("keys.json", "state.json", "logs/azurite.log", "logs/batch.log", "batch/state.sqlite")
paths += [f"{home}/local/{name}" for name in known]  # in folders that cannot be listed
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) != os.getpid():
        paths += [f"/proc/{pid}/environ", f"/proc/{pid}/cmdline"]
for path in paths:
    try:
        sys.stdout.buffer.write(open(path, "rb").read())
    except OSError:
        pass
"""


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_another_user_reads_no_key() -> None:
    """Keys and content are neither in readable files nor in the list of processes."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)  # as the home folders of many machines
    before = os.umask(0)
    cli = Cli(new_home(top / "home"), top)
    try:
        cli.ok("local", "up")
        storage = _storage(cli)
        read: dict[int, bytes] = {}
        for user in (0, _NOBODY):
            reader = ("/usr/bin/python3", "-c", _READS_ALL, str(cli.home), str(user))
            read[user] = subprocess.run(
                [RUNNER, "local", "exec", "--azure", "--", *reader],  # its gateway runs, too
                env=cli.env,
                cwd="/",
                capture_output=True,
                check=True,
            ).stdout
    finally:
        os.umask(before)
        cli.run("local", "down")
        remove_outside(cli.home)
        shutil.rmtree(top, ignore_errors=True)
    hidden = [*(key.encode() for key in storage.keys.values()), b"the secret"]
    assert [each in read[0] for each in hidden] == 4 * [True]  # root reads them
    assert [each in read[_NOBODY] for each in hidden] == 4 * [False]
