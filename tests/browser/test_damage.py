"""Documents that are damaged, half written or newer: pages and documents say so, none fails."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from runner.azure.auth.credentials import Connection, connect
from runner.azure.storage.blobs import BlobContainer
from runner.core.settings import Settings, load_settings
from runner.page.access import Access
from runner.page.app import PageApp
from runner.page.assets import Assets
from runner.page.source import Source
from tests.browser.conftest import new_page_home
from tests.e2e.conftest import Cli, remove_outside, until

HOST = "127.0.0.1:8899"
_SCRIPT = """\
import json, os, pathlib, sys
with open(os.environ["RUNNER_METRICS_FILE"], "a") as file:
    file.write(json.dumps({"name": "loss", "value": 0.5, "step": 1}) + "\\n")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "model.txt").write_text("w")
"""
_RECIPE = """\
name: small
command: python train.py
params:
  lr: {default: 0.1, type: float}
metrics: {primary: loss, goal: min}
"""


@dataclass
class Stored:
    """Services with a run, a sweep, a model, data and a schedule; and the pages of all of them."""

    run: str
    settings: Settings
    connection: Connection
    addresses: list[str] = field(default_factory=list[str])

    def container(self, name: str) -> BlobContainer:
        return BlobContainer(self.connection.blob_service(), name)

    def documents(self) -> Iterator[tuple[str, str]]:
        """Yield container and name of each JSON document, those of the shown run first."""
        outputs = self.connection.outputs
        for name in (outputs.container_runs, outputs.container_models, outputs.container_data):
            blobs = list(self.container(name).names(""))
            for blob in sorted(blobs, key=lambda each: self.run not in each):
                if blob.endswith(".json"):
                    yield name, blob

    def entries(self) -> Iterator[str]:
        """Yield the blobs of the container of runs whose document is in their metadata."""
        runs = self.container(self.connection.outputs.container_runs)
        for folder in ("index/", "by-time/", "sweeps/"):
            blobs = list(runs.names(folder))
            for blob in sorted(blobs, key=lambda each: self.run not in each):
                if not blob.endswith((".json", ".complete")) and "/runs/" not in blob:
                    yield blob

    def ask_all(self) -> dict[str, tuple[int, str]]:
        """Return status and text of every address, from a server that has read nothing before."""
        return asyncio.run(self._ask_all())

    async def _ask_all(self) -> dict[str, tuple[int, str]]:
        app = PageApp(Source(self.settings), Access(frozenset({HOST})), Assets())
        transport = httpx.ASGITransport(app.asgi, client=("127.0.0.1", 5000))
        found: dict[str, tuple[int, str]] = {}
        async with httpx.AsyncClient(
            transport=transport, base_url=f"http://{HOST}", trust_env=False, timeout=300
        ) as browser:
            await browser.get(f"/?token={app.access.link_token}")
            for path in self.addresses:
                answered = await browser.get(path)
                found[path] = (answered.status_code, answered.text)
        await app.close()
        return found


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stored]:
    """Yield services of this module, with one document of each kind."""
    folder = tmp_path_factory.mktemp("damage")
    (folder / "work" / "small").mkdir(parents=True)
    (folder / "work" / "small" / "train.py").write_text(_SCRIPT, encoding="utf-8")
    (folder / "work" / "small" / "train.yaml").write_text(_RECIPE, encoding="utf-8")
    (folder / "work" / "a.txt").write_text("data", encoding="utf-8")
    cli = Cli(new_page_home(folder / "home"), folder / "work")
    cli.ok("local", "up")
    run = cli.json("train", "./small", "--no-download")["run_id"]
    sweep = cli.json("sweep", "start", "./small", "--param", "lr=0.1,0.2", "--detach")["sweep"]
    until(lambda: set(cli.json("sweep", "show", sweep)["states"]) == {"succeeded"}, timeout_s=120)
    cli.ok("models", "register", run, "cats", "--alias", "good")
    cli.ok("data", "put", "a.txt", "sets/a.txt")
    cli.ok("schedule", "create", "./small", "--every", "1d", "--name", "daily")
    settings = load_settings({"target": "local"}, cwd=cli.cwd, env={"RUNNER_HOME": str(cli.home)})
    trial = cli.json("sweep", "show", sweep)["trials"][0]["trial"]
    pages = [
        "/runs", "/rows?n=5", f"/runs/{run}", f"/runs/{run}/files?name=model.txt",
        f"/runs/{run}/log", f"/compare?run={run}", f"/compare?group={sweep}", "/pools",
        "/pools/local", "/bill", "/sweeps", f"/sweeps/{sweep}",
        f"/sweeps/{sweep}/trials/{trial}", "/experiments", "/experiments/small", "/models",
        "/models/cats", "/data", "/data?path=sets", "/schedules", "/schedules/daily",
    ]  # fmt: skip
    documents = [
        "/runs", "/run-list", f"/runs/{run}", f"/runs/{run}/events", f"/runs/{run}/files",
        f"/runs/{run}/checkpoint-files", f"/runs/{run}/metrics", f"/runs/{run}/log",
        f"/why/{run}", f"/why/{sweep}", f"/compare?run={run}", "/pools", "/pools/local",
        "/pools/local/nodes", "/pools/local/time", "/costs", "/bill", "/sweeps",
        f"/sweeps/{sweep}", f"/groups/{sweep}", "/experiments", "/experiments/small", "/models",
        "/models/cats", "/models/cats/1", "/data", "/schedules", "/schedules/daily",
    ]  # fmt: skip
    addresses = [*pages, *(f"/api/v1{each}" for each in documents)]
    yield Stored(run, settings, connect(settings), addresses)
    cli.run("local", "down")
    remove_outside(cli.home)


def _wrong_types(content: bytes) -> bytes:
    document = json.loads(content)
    return json.dumps({name: [{"<b>": None}] for name in document} if document else []).encode()


def _newer(content: bytes) -> bytes:
    document = json.loads(content)
    return json.dumps({**document, "format": 99} if isinstance(document, dict) else 99).encode()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "wrong types": _wrong_types,
    "newer": _newer,
}


def kind_of(blob: str) -> str:
    """Return the name of a document without what differs between runs."""
    return re.sub(r"[a-z]*-?\d{8}-\d{6}-[0-9a-z-]+|[0-9a-f]{32,}|\d+", "N", blob)


def test_whole_documents_have_whole_pages(stored: Stored) -> None:
    bad = {path: status for path, (status, _) in stored.ask_all().items() if status != 200}
    assert bad == {}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_page_fails_because_of_a_damaged_document(stored: Stored, damage: str) -> None:
    failed: list[Any] = []
    seen: set[str] = set()
    for container_name, blob in list(stored.documents()):
        container = stored.container(container_name)
        content = None if kind_of(blob) in seen else container.read(blob)
        if content is None:  # trials that waited have started since
            continue
        seen.add(kind_of(blob))
        _replace(container, blob, DAMAGES[damage](content))
        failed += [(blob, *each) for each in _failures(stored)]
        _replace(container, blob, content)
    assert failed == []
    assert {"N/run.json", "N/result.json", "groups/N.json"} <= seen, seen


@pytest.mark.parametrize("value", ["{", '{"format": 99}', '{"run_id": [1]}'])
def test_no_page_fails_because_of_a_damaged_entry(stored: Stored, value: str) -> None:
    failed: list[Any] = []
    runs = stored.container(stored.connection.outputs.container_runs)
    seen: set[str] = set()
    for blob in list(stored.entries()):
        folder = blob.partition("/")[0]
        if folder in seen:
            continue
        seen.add(folder)
        metadata = runs.read_metadata(blob)
        assert metadata is not None
        runs.put_metadata(blob, dict.fromkeys(metadata, value), overwrite=True)
        failed += [(blob, *each) for each in _failures(stored)]
        runs.put_metadata(blob, metadata, overwrite=True)
    assert failed == []
    assert {"index", "by-time"} <= seen, seen


def test_sweep_whose_document_is_half_written_stays_in_the_list(stored: Stored) -> None:
    runs = stored.container(stored.connection.outputs.container_runs)
    blob = next(each for each in runs.names("groups/"))
    content = runs.read(blob)
    assert content is not None
    _replace(runs, blob, content[:40])
    _, text = stored.ask_all()["/sweeps"]
    _replace(runs, blob, content)
    sweep = blob.removeprefix("groups/").removesuffix(".json")
    assert "No sweeps" not in text
    assert f"group {sweep} cannot be read" in text


def _replace(container: BlobContainer, blob: str, content: bytes) -> None:
    container.delete(blob)
    assert container.create_bytes(blob, content, "application/json")


def _failures(stored: Stored) -> list[tuple[str, int, str]]:
    """Return the addresses whose answer is an unexpected error, with what it says."""
    return [
        (path, status, text[:300])
        for path, (status, text) in stored.ask_all().items()
        if status >= 500 or "R-BUG" in text
    ]
