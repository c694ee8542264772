"""Application packages: stored, listed, and installed on the nodes of pools and tasks."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError

from batch_emulator.domain import applications
from tests import plain_http
from tests.contract.server import (
    KEY,
    Running,
    Things,
    code_of,
    serving,
    values_of,
    wire,
)

BEARER = {"Authorization": f"Bearer {KEY}"}


def archive(**files: str) -> bytes:
    """Return a zip file; `__` in a name stands for a slash."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name, text in files.items():
            info = zipfile.ZipInfo(name.replace("__", "/"))
            info.create_system = 3
            info.external_attr = 0o100755 << 16
            opened.writestr(info, text)
    return buffer.getvalue()


class Store:
    """The emulator's own API of applications."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/_emulator/applications"

    def put(
        self, application: str, version: str, content: Any, *, default: bool = False
    ) -> httpx.Response:
        suffix = "?default=true" if default else ""
        url = f"{self._url}/{application}/versions/{version}{suffix}"
        return plain_http.put(url, content=content, headers=BEARER)

    def change(self, application: str, **settings: Any) -> httpx.Response:
        return plain_http.put(f"{self._url}/{application}", json=settings, headers=BEARER)

    def delete(self, application: str, version: str | None = None) -> httpx.Response:
        suffix = f"/versions/{version}" if version else ""
        return plain_http.delete(f"{self._url}/{application}{suffix}", headers=BEARER)


@pytest.fixture
def store(running: Running) -> Store:
    return Store(running.url)


@pytest.fixture
def app(store: Store, things: Things) -> str:
    """Return an application with the version 1.0, which is the default."""
    name = things.id("App")
    store.put(name, "1.0", archive(hello="hello 1.0"), default=True).raise_for_status()
    return name


def reference(application: str, version: str | None = None) -> Any:
    return models.BatchApplicationPackageReference(application_id=application, version=version)


def env_name(application: str, version: str = "") -> str:
    name = f"AZ_BATCH_APP_PACKAGE_{application}" + (f"_{version}" if version else "")
    return re.sub(r"[^A-Za-z0-9]", "_", name)


def run(things: Things, pool: str, script: str, **options: Any) -> str:
    job = things.job(pool)
    task = things.task(job, f'/bin/sh -c "{script}"', **options)
    done = things.wait_task(job, task)
    assert done.execution_info is not None
    assert done.execution_info.exit_code == 0, done.execution_info.failure_info
    return things.text(job, task)


def test_stored_packages_are_listed(client: BatchClient, store: Store, app: str) -> None:
    store.put(app, "2-beta_1", archive(hello="2")).raise_for_status()
    store.change(app, displayName="My app").raise_for_status()
    found = client.get_application(app.upper())
    assert (found.id, found.display_name) == (app, "My app")
    assert found.versions == ["1.0", "2-beta_1"]
    assert app in [one.id for one in client.list_applications()]


def test_application_list_pages(client: BatchClient, store: Store, things: Things) -> None:
    names = sorted(things.id("page") for _ in range(5))
    for name in names:
        store.put(name, "1", archive(a="b")).raise_for_status()
    pages = client.list_applications(max_results=2).by_page()
    listed = [str(one.id) for page in pages for one in page]
    assert set(names) <= set(listed)
    assert listed == sorted(listed, key=str.lower)


def test_data_plane_hides_applications_without_versions(
    client: BatchClient, store: Store, things: Things
) -> None:
    name = things.id("empty")
    store.change(name, displayName="x").raise_for_status()
    assert name not in [one.id for one in client.list_applications()]
    for missing in (name, "none"):
        with pytest.raises(HttpResponseError) as caught:
            client.get_application(missing)
        assert (caught.value.status_code, code_of(caught.value)) == (404, "ApplicationNotFound")


def test_package_of_a_pool_is_available_to_start_task_and_tasks(things: Things, app: str) -> None:
    name = env_name(app, "1.0")
    start = models.BatchStartTask(
        command_line=f"/bin/sh -c 'cp ${name}/hello .'", wait_for_success=True
    )
    pool = things.pool(
        target_dedicated_nodes=1,
        application_package_references=[reference(app, "1.0")],
        start_task=start,
    )
    things.wait_nodes(pool, 1, "idle")
    assert run(things, pool, "cat $AZ_BATCH_NODE_STARTUP_DIR/wd/hello") == "hello 1.0"
    folder = run(things, pool, f"echo ${name}").strip()
    pattern = rf".*/tasks/applications/{app}1\.0\d{{4}}(-\d\d){{4}}"
    assert re.fullmatch(pattern, folder)
    assert Path(folder, "hello").stat().st_mode & 0o777 == 0o755


def test_default_version_is_delivered_under_both_names(things: Things, app: str) -> None:
    pool = things.pool(target_dedicated_nodes=1, application_package_references=[reference(app)])
    script = f"cat ${env_name(app)}/hello ${env_name(app, '1.0')}/hello"
    assert run(things, pool, script) == "hello 1.0hello 1.0"


def test_resource_manager_id_references_the_application(things: Things, app: str) -> None:
    long = (
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Batch/batchAccounts/a/applications/"
    )
    pool = things.pool(
        target_dedicated_nodes=1, application_package_references=[reference(long + app, "1.0")]
    )
    assert run(things, pool, f"cat ${env_name(app, '1.0')}/hello") == "hello 1.0"


@pytest.mark.parametrize("version", [None, "3.0"])
def test_pool_with_an_unknown_package_reference_is_refused(
    store: Store, things: Things, app: str, version: str | None
) -> None:
    store.change(app, defaultVersion="").raise_for_status()
    with pytest.raises(HttpResponseError) as caught:
        things.pool(application_package_references=[reference(app, version)])
    assert caught.value.status_code == 409
    assert code_of(caught.value) == "InvalidApplicationPackageReferences"
    named = f"{app}:{version}" if version else app
    why = "The specified application package does not exist."
    assert values_of(caught.value) == {
        named: why if version else "The specified application has no default version."
    }


def test_eleventh_package_is_refused(things: Things, app: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        things.pool(application_package_references=[reference(app)] * 11)
    assert code_of(caught.value) == "InvalidPropertyValue"


BROKEN = {"no zip": b"not a zip", "slip": archive(**{"..__..__out": "x"})}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_broken_package_makes_nodes_of_its_pool_unusable(
    running: Running, store: Store, things: Things, content: bytes
) -> None:
    name = things.id("broken")
    store.put(name, "1", content).raise_for_status()
    pool = things.pool(
        target_dedicated_nodes=1, application_package_references=[reference(name, "1")]
    )
    [node] = things.wait_nodes(pool, 1, "unusable")
    [error] = node.errors or []
    assert error.code == "ApplicationPackageError"
    assert error.message == "One or more application packages specified for the pool are invalid"
    details = {str(one.name): str(one.value) for one in error.error_details or []}
    assert details["ApplicationPackageReference"] == f"{name}:1"
    assert details["Message"].startswith("Resource extraction failed")
    assert not [*running.emulator.launches.layout(pool, str(node.id)).applications.iterdir()]


def test_package_deleted_after_pool_creation_fails_new_nodes(
    client: BatchClient, store: Store, things: Things, app: str
) -> None:
    pool = things.pool(application_package_references=[reference(app, "1.0")])
    store.delete(app, "1.0").raise_for_status()
    client.begin_resize_pool(pool, wire(targetDedicatedNodes=1))
    [node] = things.wait_nodes(pool, 1, "unusable")
    [error] = node.errors or []
    details = {str(one.name): str(one.value) for one in error.error_details or []}
    assert details["Message"].startswith("Resource download failed")


def test_package_of_a_task_is_shared_by_the_tasks_of_its_node(things: Things, app: str) -> None:
    pool = things.pool(target_dedicated_nodes=1, task_slots_per_node=4)
    references = [reference(app, "1.0")]
    job = things.job(pool)
    script = f"/bin/sh -c 'echo ${env_name(app, '1.0')}; cat ${env_name(app, '1.0')}/hello'"
    tasks = [things.task(job, script, application_package_references=references) for _ in range(4)]
    for task in tasks:
        things.wait_task(job, task)
    texts = {things.text(job, task) for task in tasks}
    assert len(texts) == 1
    assert texts.pop().endswith("hello 1.0")
    assert run(things, pool, f"echo [${env_name(app, '1.0')}]").strip() == "[]"


def test_task_with_a_missing_package_fails_before_it_runs(things: Things, app: str) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    job = things.job(pool, task_failure_mode="performexitoptionsjobaction")
    exits = wire(preProcessingError={"jobAction": "terminate"})
    task = things.task(
        job, application_package_references=[reference(app, "9")], exit_conditions=exits
    )
    done = things.wait_task(job, task).execution_info
    assert done is not None
    assert done.exit_code is None
    assert done.failure_info is not None
    assert (done.failure_info.category, done.failure_info.code) == (
        "UserError",
        "ApplicationPackageError",
    )
    things.wait_job(job)


def test_changed_package_references_apply_after_a_reboot(
    client: BatchClient, store: Store, things: Things, app: str
) -> None:
    store.put(app, "2", archive(hello="hello 2")).raise_for_status()
    pool = things.pool(
        target_dedicated_nodes=1, application_package_references=[reference(app, "1.0")]
    )
    [node] = things.wait_nodes(pool, 1, "idle")
    client.update_pool(
        pool, models.BatchPoolUpdateOptions(application_package_references=[reference(app, "2")])
    )
    assert run(things, pool, f"cat ${env_name(app, '1.0')}/hello") == "hello 1.0"
    client.begin_reboot_node(pool, str(node.id), wire(nodeRebootOption="requeue"))
    things.wait_nodes(pool, 1, "idle")
    script = f"cat ${env_name(app, '2')}/hello; echo [${env_name(app, '1.0')}]"
    assert run(things, pool, script) == "hello 2[]\n"


def test_replaced_package_is_updated_on_existing_nodes(
    store: Store, things: Things, app: str
) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    script = f"cat ${env_name(app, '1.0')}/hello"
    references = [reference(app, "1.0")]
    assert run(things, pool, script, application_package_references=references) == "hello 1.0"
    store.put(app, "1.0", archive(hello="again")).raise_for_status()
    assert run(things, pool, script, application_package_references=references) == "again"


def test_chunked_upload_of_a_large_package_is_stored(store: Store, things: Things) -> None:
    size = 20_000_000

    def chunks() -> Iterator[bytes]:
        data = archive(big="x" * size)
        for start in range(0, len(data), 1 << 16):
            yield data[start : start + (1 << 16)]

    name = things.id("large")
    store.put(name, "1", chunks()).raise_for_status()
    pool = things.pool(
        target_dedicated_nodes=1, application_package_references=[reference(name, "1")]
    )
    assert run(things, pool, f"wc -c < ${env_name(name, '1')}/big").strip() == str(size)


def test_too_large_package_is_refused_and_leaves_no_files(
    running: Running, store: Store, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applications, "MAX_PACKAGE_BYTES", 1000)
    name = things.id("toolarge")
    answer = store.put(name, "1", bytes(2000))
    assert (answer.status_code, answer.json()["code"]) == (413, "RequestBodyTooLarge")
    folder = running.emulator.settings.data_dir / "applications"
    assert not (folder / name).exists()
    assert not list((folder / ".incoming").iterdir())


def test_large_upload_without_the_key_is_refused(running: Running) -> None:
    url = f"{running.url}/_emulator/applications/a/versions/1"
    answer = plain_http.put(url, content=bytes(8_000_000))
    assert answer.status_code == 403
    assert "a" not in [one.id for one in running.client.list_applications()]


@pytest.mark.parametrize("version", ["a b", "%2e%2e%2fx", "x" * 65, "%00"])
def test_invalid_version_is_refused(store: Store, version: str) -> None:
    assert store.put("app", version, archive(a="b")).status_code == 400


def test_version_with_leading_dots_stays_in_the_applications_folder(
    store: Store, things: Things
) -> None:
    name = things.id("dots")
    assert store.put(name, "..x", archive(a="b")).status_code == 201
    pool = things.pool(
        target_dedicated_nodes=1, application_package_references=[reference(name, "..x")]
    )
    folder = run(things, pool, f"echo ${env_name(name, '..x')}").strip()
    assert Path(folder).parent.name == "applications"


def test_application_without_updates_accepts_only_new_versions(store: Store, app: str) -> None:
    store.change(app, allowUpdates=False).raise_for_status()
    assert store.put(app, "1.0", archive(a="b")).status_code == 409
    assert store.delete(app, "1.0").status_code == 409
    assert store.delete(app).status_code == 409
    assert store.put(app, "2.0", archive(a="b")).status_code == 201


def test_deleting_the_default_version_leaves_no_default(
    client: BatchClient, store: Store, things: Things, app: str
) -> None:
    store.put(app, "2", archive(hello="2")).raise_for_status()
    store.delete(app, "1.0").raise_for_status()
    assert client.get_application(app).versions == ["2"]
    with pytest.raises(HttpResponseError):
        things.pool(application_package_references=[reference(app)])
    store.delete(app).raise_for_status()
    assert store.delete(app).status_code == 404


def test_default_version_must_exist(store: Store, app: str) -> None:
    answer = store.change(app, defaultVersion="9")
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidPropertyValue")


def test_packages_and_their_installations_survive_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        things = Things(running.client)
        Store(running.url).put("app", "1", archive(hello="hi"), default=True).raise_for_status()
        pool = things.pool(
            target_dedicated_nodes=1, application_package_references=[reference("app")]
        )
        [before] = things.wait_nodes(pool, 1, "idle")
    with serving(tmp_path) as running:
        things = Things(running.client)
        assert [one.id for one in running.client.list_applications()] == ["app"]
        [after] = things.wait_nodes(pool, 1, "idle")
        assert after.id == before.id
        assert run(things, pool, f"cat ${env_name('app')}/hello") == "hi"
