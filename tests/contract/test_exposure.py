"""An emulator that other machines reach: which ports they reach, under which names, with what."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import psutil
import pytest

from batch_emulator.files_share.shares import StorageAccount
from batch_emulator.server import Server
from tests import plain_http
from tests.contract.server import KEY, Things, client_for
from tests.contract.test_restart import process

STORAGE_KEY = base64.b64encode(bytes(64)).decode()
WEB = {"origin": "http://web.example"}


@pytest.mark.attack
@pytest.mark.parametrize("exposed", [True, False])
def test_only_an_exposed_port_answers_under_any_host_and_to_no_web_page(exposed: bool) -> None:
    storage = StorageAccount("store", STORAGE_KEY)
    with Server(storage=storage, ui=True, exposed=exposed) as server:
        assert server.page_link is not None
        page = server.page_link.partition("?")[0]
        health = f"{server.url}/_emulator/health"
        answers = [
            plain_http.get(address, headers={"host": "batch:8900"}).status_code
            for address in (health, f"{server.url}/pools", f"{server.files_url}?comp=list", page)
        ]
        # 403 and 401 without a signature, 401 without a session
        assert answers == ([200, 403, 401, 401] if exposed else [403, 403, 403, 403])
        text = plain_http.get(f"{server.url}/pools", headers={"host": "batch:8900"}).text
        assert ("is not a loopback address" in text) is not exposed
        for address in (health, f"{server.files_url}?comp=list"):
            refused = plain_http.get(address, headers={"host": "batch:8900", **WEB})
            assert refused.status_code == 403
        link = plain_http.get(server.page_link, headers={"host": "web.example"})
        assert link.status_code == (303 if exposed else 403)


@pytest.mark.slow
def test_every_listener_is_exposed_but_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_EMULATOR_STORAGE_KEY", base64.b64encode(bytes(range(64))).decode())
    names = ("--azure-names", "--blob-endpoint", "http://127.0.0.1:1/contract")
    options = ("--host", "0.0.0.0", "--expose", "--ui", "--storage-account", "contract", *names)
    with process(tmp_path / "data", *options) as (started, client):
        listening = [
            one.laddr.ip
            for one in psutil.Process(started.pid).net_connections()
            if one.status == "LISTEN"
        ]
        assert sorted(listening) == ["0.0.0.0"] * 3 + ["127.0.0.1"]
        things = Things(client)
        job_id = things.job(things.pool(target_dedicated_nodes=1))
        task_id = things.task(job_id, "/bin/sh -c 'echo $AZ_BATCH_ACCOUNT_URL'")
        things.wait_task(job_id, task_id)
        url = things.text(job_id, task_id).strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert list(client_for(url, KEY).list_jobs())
