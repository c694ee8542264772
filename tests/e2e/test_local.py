"""`runner local` as a person and other people's clients see it."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from azure.batch import BatchClient
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import BlobServiceClient

from runner.core.progress import ignore_progress
from runner.core.settings import load_settings
from runner.flows.local import lifecycle
from runner.flows.local.lifecycle import StoppedServices
from tests import plain_http
from tests.e2e.conftest import Cli, new_home, show_ended, until
from tests.refusing_proxy import refusing_proxy


def _exports(cli: Cli) -> dict[str, str]:
    lines = cli.ok("local", "env").splitlines()
    assert len(cli.json("local", "env")) == len(lines)
    words = [shlex.split(line) for line in lines]
    assert all(word[0] == "export" and len(word) == 2 for word in words)
    return dict(word[1].split("=", 1) for word in words)


def _batch(exports: dict[str, str]) -> BatchClient:
    credential: Any = AzureNamedKeyCredential(
        exports["AZURE_BATCH_ACCOUNT"], exports["AZURE_BATCH_ACCESS_KEY"]
    )
    return BatchClient(exports["AZURE_BATCH_ENDPOINT"], credential)


def _blob(exports: dict[str, str]) -> BlobServiceClient:
    return BlobServiceClient.from_connection_string(exports["AZURE_STORAGE_CONNECTION_STRING"])


def _share(exports: dict[str, str]) -> Any:
    sdk: Any = pytest.importorskip("azure.storage.fileshare")
    connection = exports["AZURE_STORAGE_CONNECTION_STRING"]
    return sdk.ShareServiceClient.from_connection_string(connection).get_share_client("kept")


def test_files_of_the_storage_account_survive_down_and_up(own_cli: Cli) -> None:
    own_cli.ok("local", "up")
    before = _exports(own_cli)
    assert before["AZURE_STORAGE_FILE_ENDPOINT"].startswith("http://127.0.0.1:")
    share = _share(before)
    share.create_share()
    share.get_file_client("f").upload_file(b"yes")
    own_cli.ok("local", "down")
    own_cli.ok("local", "up")
    assert _exports(own_cli) == before
    assert share.get_file_client("f").download_file().readall() == b"yes"


@pytest.mark.smoke
def test_ports_keys_and_data_survive_down_and_up(own_cli: Cli) -> None:
    own_cli.ok("local", "up")
    before = _exports(own_cli)
    _blob(before).get_blob_client("models", "kept").upload_blob(b"yes")
    own_cli.ok("local", "down")
    assert own_cli.json("local", "status")["batch"]["state"] == "stopped"
    assert own_cli.run("local", "env").returncode == 3
    own_cli.ok("local", "up")
    assert _exports(own_cli) == before
    assert _blob(before).get_blob_client("models", "kept").download_blob().readall() == b"yes"
    assert [pool.id for pool in _batch(before).list_pools()] == ["local"]


def test_down_finds_the_runs_that_up_starts_again(
    own_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = tmp_path / "began"
    (own_cli.cwd / "wait.py").write_text(
        f"import os, time\nname = {str(began)!r}\n"
        "if not os.path.exists(name):\n    open(name, 'x')\n    time.sleep(600)\n"
    )
    own_cli.ok("train", "wait.py", "--detach")
    [run] = own_cli.json("ps")
    until(began.exists)
    monkeypatch.setattr(lifecycle, "_ACTIVE_WITHIN_S", 600)  # on a busy machine
    settings = load_settings({}, cwd=tmp_path, env=own_cli.env)
    assert lifecycle.down(settings, ignore_progress).active == (run["run_id"],)
    own_cli.ok("local", "up")
    assert show_ended(own_cli, run["run_id"])["state"] == "succeeded"
    assert lifecycle.down(settings, ignore_progress) == StoppedServices(ran=True)
    assert lifecycle.down(settings, ignore_progress) == StoppedServices(ran=False)


def test_sizes_of_running_services_can_change_and_are_stored(own_cli: Cli) -> None:
    own_cli.ok("local", "up", "--nodes", "1", "--slots", "1")
    pids = [own_cli.json("local", "status")[name]["pid"] for name in ("batch", "blob")]
    client = _batch(_exports(own_cli))

    def sizes() -> tuple[int | None, int | None]:
        pool = client.get_pool("local")
        return pool.current_low_priority_nodes, pool.task_slots_per_node

    until(lambda: sizes() == (1, 1))
    own_cli.ok("local", "up", "--nodes", "2")
    until(lambda: sizes() == (2, 1))
    own_cli.ok("local", "up", "--slots", "3")
    until(lambda: sizes() == (2, 3))
    status = own_cli.json("local", "status")
    assert (status["nodes"], status["slots"]) == (2, 3)
    assert [status[name]["pid"] for name in ("batch", "blob")] == pids


def test_page_of_the_emulator_is_served_until_it_is_disabled(own_cli: Cli) -> None:
    first = own_cli.json("local", "up", "--ui")["page"]
    assert plain_http.get(first).status_code == 303
    own_cli.ok("local", "down")
    again = own_cli.json("local", "up")
    assert again["page"].partition("?")[0] == first.partition("?")[0]  # the same port
    assert again["page"] != first
    assert plain_http.get(again["page"]).status_code == 303
    assert "page" not in own_cli.json("local", "status")
    assert "page" not in own_cli.json("local", "up", "--no-ui")


@pytest.mark.fix("R-LOCAL-OPTION")
def test_faults_and_images_are_kept_until_removed(own_cli: Cli) -> None:
    rules, image = own_cli.cwd / "faults.toml", own_cli.cwd / "ml"
    rules.write_text('[[rules]]\nname = "once"\nfault = "quota"\nquota = "pools"\nlimit = 1\n')
    (image / "bin").mkdir(parents=True)
    for name in ("sh", "python3"):
        (image / "bin" / name).symlink_to(shutil.which(name) or "")
    named = "canonical:ubuntu-24_04-lts:server=ml"
    first = own_cli.json("local", "up", "--faults", "faults.toml", "--image", named)
    assert (first["faults"], first["images"]) == (str(rules), [named.replace("=ml", f"={image}")])
    exports = _exports(own_cli)
    headers = {"Authorization": f"Bearer {exports['AZURE_BATCH_ACCESS_KEY']}"}
    url = exports["AZURE_BATCH_ENDPOINT"] + "/_emulator"
    [rule] = plain_http.get(f"{url}/faults", headers=headers).json()["value"]
    assert rule["name"] == "once"

    def image_of_nodes() -> set[str]:
        found = plain_http.get(f"{url}/pools/local/nodes", headers=headers).json()
        return {node["image"] for node in found["value"]}

    until(lambda: image_of_nodes() == {str(image)})
    own_cli.ok("local", "down")
    again = own_cli.json("local", "up")
    assert (again["faults"], again["images"]) == (first["faults"], first["images"])
    rules.unlink()
    refused = own_cli.run("local", "up")
    assert refused.returncode == 2
    assert "error[R-LOCAL-OPTION]: " in refused.stderr
    assert f"cannot read {rules}" in refused.stderr
    status = own_cli.json("local", "status")
    assert status["batch"]["pid"] == again["batch"]["pid"]
    own_cli.ok("local", "up", "--no-faults", "--no-images")
    assert not {"faults", "images"} & set(own_cli.json("local", "status"))
    assert plain_http.get(f"{url}/faults", headers=headers).json()["value"] == []


def test_reset_deletes_the_account_and_keeps_the_downloads(own_cli: Cli) -> None:
    own_cli.ok("local", "up")
    before = _exports(own_cli)
    refused = own_cli.run("local", "reset")
    assert refused.returncode == 2
    assert own_cli.json("local", "status")["running"] is True
    own_cli.ok("local", "reset", "--yes")
    assert not (own_cli.home / "local").exists()
    assert (own_cli.home / "azurite").exists()
    assert own_cli.json("local", "status")["running"] is False
    own_cli.ok("local", "up")
    after = _exports(own_cli)
    assert after["AZURE_BATCH_ACCESS_KEY"] != before["AZURE_BATCH_ACCESS_KEY"]


@pytest.mark.fix("R-LOCAL-STATE")
def test_state_of_another_version_is_reset_without_runs(own_cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text("print('hello')\n")
    own_cli.ok("train", script)
    [run] = own_cli.json("ps")
    own_cli.ok("local", "down")
    state = own_cli.home / "local" / "batch" / "state.sqlite"
    with closing(sqlite3.connect(state)) as database:
        database.execute("PRAGMA user_version=1")
        database.commit()
    refused = own_cli.run("train", script)
    assert refused.returncode == 3
    assert "error[R-LOCAL-STATE]: another version of runner wrote the state in " in refused.stderr
    assert "runner local reset --state\n" in refused.stderr
    assert own_cli.run("local", "reset", "--state").returncode == 2
    own_cli.ok("local", "reset", "--state", "--yes")
    own_cli.ok("local", "up")
    assert [each["run_id"] for each in own_cli.json("ps")] == [run["run_id"]]
    own_cli.ok("train", script)


@pytest.mark.feature(11)
def test_concurrent_local_ups_start_one_set_of_services(own_cli: Cli) -> None:
    both = [own_cli.start("local", "up", "-o", "json") for _ in range(2)]
    seen = [json.loads(process.communicate(timeout=240)[0]) for process in both]
    assert seen[0]["batch"]["pid"] == seen[1]["batch"]["pid"]
    assert seen[0]["blob"]["pid"] == seen[1]["blob"]["pid"]


# Asks this machine as programs of Python do, and leaves a file that is registered as a model.
PROXIED_SCRIPT = """
import http.server, os, pathlib, threading, urllib.request
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/").read()
(pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"]) / "model.bin").write_bytes(b"weights")
print("trained past the proxy")
"""


@pytest.mark.parametrize("socks", [False, True], ids=["http", "socks"])
@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
def test_nothing_asks_a_proxy_for_local_services(
    own_cli: Cli, tmp_path: Path, upper: bool, socks: bool
) -> None:
    (tmp_path / "past").mkdir()
    (tmp_path / "past/train.py").write_text(PROXIED_SCRIPT)
    (tmp_path / "past/train.yaml").write_text(
        "name: past\ncommand: [python, train.py]\nmodel: {name: past}\n"
    )
    none = dict.fromkeys(("no_proxy", "NO_PROXY"), "")
    with refusing_proxy() as proxy:
        url = f"{'socks5h' if socks else 'http'}://{proxy.address}"
        names = ("all_proxy",) if socks else ("http_proxy", "https_proxy", "all_proxy")
        variables = {name.upper() if upper else name: url for name in names}
        # The second run finds services that run, as after `local up` in another shell.
        for given in ((), ("--env", f"HTTP_PROXY=http://{proxy.address}")):
            words = ("train", tmp_path / "past", *given)
            done = own_cli.run(*words, env={**none, **variables}, timeout_s=120)
            assert done.returncode == 0, done.stderr
            assert "trained past the proxy" in done.stdout + done.stderr
            assert "past@" in done.stdout + done.stderr
        assert not [wanted for wanted in proxy.wanted if "127.0.0.1" in wanted]


def test_running_services_missing_from_the_state_are_adopted(own_cli: Cli) -> None:
    own_cli.ok("local", "up")
    before = own_cli.json("local", "status")
    state = own_cli.home / "local" / "state.json"
    raw = json.loads(state.read_text())
    state.write_text(json.dumps({**raw, "batch": None, "blob": {"pid": 1, "created": 0.0}}))
    assert own_cli.json("local", "status")["blob"]["state"] == "died"
    own_cli.ok("local", "up")
    after = own_cli.json("local", "status")
    assert [after[n]["pid"] for n in ("batch", "blob")] == [
        before[n]["pid"] for n in ("batch", "blob")
    ]


@pytest.mark.slow
def test_lost_or_damaged_state_starts_no_second_set(own_cli: Cli) -> None:
    state = own_cli.home / "local" / "state.json"
    own_cli.ok("local", "up")
    first = _pids(own_cli)
    state.unlink()
    own_cli.ok("local", "up")
    assert not any(_lives(pid) for pid in first)
    second = _pids(own_cli)
    state.write_text("{")
    refused = own_cli.run("local", "status")
    assert refused.returncode == 3
    assert "state.json" in refused.stderr
    own_cli.ok("local", "reset", "--yes")
    assert not any(_lives(pid) for pid in second)


def test_deleted_home_ends_its_services_and_the_next_run_starts_others(
    own_cli: Cli, script: Callable[[str], Path]
) -> None:
    folder = script("print(1)")
    own_cli.ok("train", folder)
    first = _pids(own_cli)
    _delete_home(own_cli)
    own_cli.ok("train", folder)  # at once, without the blobs of the deleted home
    assert not any(_lives(pid) for pid in first)
    second = _pids(own_cli)
    _delete_home(own_cli)
    until(lambda: not any(_lives(pid) for pid in second))


def _delete_home(cli: Cli) -> None:
    """Replace the home by an empty one. The services may write new files meanwhile."""
    until(lambda: shutil.rmtree(cli.home, ignore_errors=True) or not cli.home.exists())
    new_home(cli.home)


def _pids(cli: Cli) -> list[int]:
    status = cli.json("local", "status")
    return [status[name]["pid"] for name in ("batch", "blob")]


def _lives(pid: int) -> bool:
    """Return True if the process runs; zombies do not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
