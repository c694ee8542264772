"""Stored code is what its name says, whoever may write to storage."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.storage import blobs
from runner.core.home import HomePaths
from runner.core.planning.plan import CodeRef, RunContent
from runner.flows.submit.repeat import check_parts
from runner.flows.submit.submit_run import ChangedCode, CodeStore
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import outputs, plan
from tests.unit.node.fake_blob import FakeBlobs, etag, serve_fake_blobs

pytestmark = pytest.mark.attack
KEYS = {"batch": "unused", "storage": base64.b64encode(b"k" * 64).decode()}
CONTENT, EVIL = b"the code", b"other code"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
EARLIER = f"code/{SHA256}"


@pytest.fixture
def service() -> Generator[FakeBlobs]:
    with serve_fake_blobs() as serving:
        yield serving


@pytest.fixture
def connection(service: FakeBlobs, tmp_path: Path) -> Connection:
    stack = replace(outputs(), blob_endpoint=service.url.rpartition("/")[0])
    return Connection(stack, KEYS, tmp_path)


def place(service: FakeBlobs) -> str:
    """Return the name under which the service stores the blob of the code."""
    [name] = [name for name in service.blobs if name.endswith(SHA256)]
    return name


def store(connection: Connection) -> CodeStore:
    found = CodeStore(connection)
    assert found.keep(SHA256) == ChangedCode(SHA256)
    found.write(ChangedCode(SHA256), CONTENT)
    found.remember()
    return found


def sent(service: FakeBlobs) -> Counter[str]:
    counted = Counter(method for method, _, _ in service.requests)
    service.requests.clear()
    return counted


def test_stored_blob_is_proven_by_one_request(service: FakeBlobs, connection: Connection) -> None:
    store(connection)
    sent(service)
    assert CodeStore(connection).keep(SHA256) is None
    assert sent(service) == {"HEAD": 1}


def test_replaced_blob_is_found_and_replaced_again(
    service: FakeBlobs, connection: Connection
) -> None:
    store(connection)
    name = place(service)
    service.put(name, EVIL)
    found = CodeStore(connection)
    changed = found.keep(SHA256)
    assert changed == ChangedCode(SHA256, etag(EVIL))
    assert changed is not None
    found.write(changed, CONTENT)
    assert service.data(name) == CONTENT
    found.remember()
    assert CodeStore(connection).keep(SHA256) is None


def test_unknown_blob_is_hashed_once(service: FakeBlobs, connection: Connection) -> None:
    store(connection)
    remembered = HomePaths(connection.home or Path()).stored_code
    remembered.unlink()  # as on another machine
    sent(service)
    found = CodeStore(connection)
    assert found.keep(SHA256) is None
    assert sent(service) == {"HEAD": 2, "GET": 1}
    found.remember()
    assert CodeStore(connection).keep(SHA256) is None
    assert sent(service) == {"HEAD": 1}
    assert remembered.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}', '{"x": {"y": 1}}'])
def test_damaged_memory_costs_a_download(
    service: FakeBlobs, connection: Connection, text: str
) -> None:
    store(connection)
    HomePaths(connection.home or Path()).stored_code.write_text(text)
    service.put(place(service), EVIL)
    assert CodeStore(connection).keep(SHA256) == ChangedCode(SHA256, etag(EVIL))


def test_renewed_blob_stays_proven(
    service: FakeBlobs, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(connection)
    monkeypatch.setattr(blobs, "RENEWED_AFTER", timedelta(seconds=-60))
    found = CodeStore(connection)
    assert found.keep(SHA256) is None
    found.remember()
    monkeypatch.setattr(blobs, "RENEWED_AFTER", timedelta(days=1))
    sent(service)
    assert CodeStore(connection).keep(SHA256) is None
    assert sent(service) == {"HEAD": 1}


def test_blob_that_changes_while_it_is_renewed_is_checked_again(
    service: FakeBlobs, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(connection)
    name, renew = place(service), blobs.BlobContainer.renew

    def replaced(container: blobs.BlobContainer, info: blobs.BlobInfo) -> str | None:
        monkeypatch.setattr(blobs.BlobContainer, "renew", renew)
        service.put(name, EVIL)
        return renew(container, info)

    monkeypatch.setattr(blobs, "RENEWED_AFTER", timedelta(seconds=-60))
    monkeypatch.setattr(blobs.BlobContainer, "renew", replaced)
    assert CodeStore(connection).keep(SHA256) == ChangedCode(SHA256, etag(EVIL))


def test_blob_that_another_client_writes_is_not_trusted(
    service: FakeBlobs, connection: Connection
) -> None:
    found = CodeStore(connection)
    missing = ChangedCode(SHA256)
    assert found.keep(SHA256) == missing
    store(connection)
    service.put(place(service), EVIL)
    found.write(missing, CONTENT)
    assert service.data(place(service)) == CONTENT


def test_code_of_version_1_is_copied_only_with_its_hash(
    service: FakeBlobs, connection: Connection
) -> None:
    service.put(EARLIER, EVIL)
    assert not CodeStore(connection).restore(SHA256)
    assert list(service.blobs) == [EARLIER]
    service.put(EARLIER, CONTENT)
    assert CodeStore(connection).restore(SHA256)
    del service.blobs[EARLIER]
    assert CodeStore(connection).restore(SHA256)


def test_agent_of_an_earlier_schedule_is_copied_with_its_code(
    service: FakeBlobs, connection: Connection
) -> None:
    agent = b"the agent"
    agent_sha256 = hashlib.sha256(agent).hexdigest()
    spec = plan(content=RunContent(CodeRef(SHA256, 8, 1), agent_sha256, None, None)).to_spec()
    service.put(EARLIER, CONTENT)
    check_parts(connection, spec)  # a repetition has the agent of this machine
    with pytest.raises(RunnerError, match="the agent of") as missing:
        check_parts(connection, spec, has_old_agent=True)
    assert agent_sha256 in (missing.value.why or "")
    service.put(f"code/{agent_sha256}", agent)
    check_parts(connection, spec, has_old_agent=True)
    assert CodeStore(connection).keep(agent_sha256) is None


def test_memory_is_bounded(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.flows.submit.submit_run._MOST_ETAGS", 3)
    for number in range(5):
        content = str(number).encode()
        found = CodeStore(connection)
        found.write(ChangedCode(hashlib.sha256(content).hexdigest()), content)
        found.remember()
    [etags] = json.loads(HomePaths(connection.home or Path()).stored_code.read_text()).values()
    assert len(etags) == 3
    assert hashlib.sha256(b"4").hexdigest() in etags
