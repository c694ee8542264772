"""The emulator's page: who may look and act, what is shown, and that everything is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from batch_emulator.domain.account import Limits
from batch_emulator.page.actions import ACTIONS
from batch_emulator.server import Server
from tests import plain_http
from tests.contract.server import ACCOUNT, KEY, MACHINE, Things, client_for, eventually

HOSTILE = "<script>alert(1)</script>"
BEARER = {"Authorization": f"Bearer {KEY}"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SCRIPT = '<script src="/static/page.js" defer blocking="render">'
SECTIONS = ("/", "/timeline", "/jobs", "/schedules", "/requests", "/events", "/control")


@dataclass
class Pages:
    """An emulator with a page, and a browser that is signed in."""

    server: Server
    base: str
    browser: httpx.Client
    things: Things

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.browser.get(f"{self.base}{path}", headers=headers)

    def text(self, path: str) -> str:
        """Return a page that must be there."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def act(self, name: str, *, sure: bool = True, **given: str) -> httpx.Response:
        form = {**given, **({"sure": "yes"} if sure else {})}
        return self.browser.post(
            f"{self.base}/act/{name}", data=form, headers={"origin": self.base}
        )

    def admin(self, path: str) -> Any:
        return plain_http.get(f"{self.server.url}/_emulator{path}", headers=BEARER).json()


def _serve(folder: Path) -> Server:
    limits = Limits(boot_s=0.05)
    return Server(folder, ui=True, account=ACCOUNT, key=KEY, limits=limits)


def _link_of(server: Server) -> str:
    assert server.page_link is not None
    return server.page_link


def _signed_in(server: Server) -> Pages:
    link = _link_of(server)
    browser = httpx.Client(trust_env=False, timeout=300)
    assert browser.get(link).status_code == 303
    things = Things(client_for(server.url))
    return Pages(server, link.partition("/?")[0], browser, things)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Generator[Pages]:
    """Yield the page of an account without anything."""
    with _serve(tmp_path_factory.mktemp("empty")) as server:
        yield _signed_in(server)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Generator[Pages]:
    """Yield the page of an account with two spot nodes and a task whose names are hostile."""
    with _serve(tmp_path_factory.mktemp("page")) as server:
        found = _signed_in(server)
        client = found.things.client
        body: Any = {
            "id": "gpus",
            "displayName": HOSTILE,
            "vmSize": "standard_d2s_v3",
            "targetLowPriorityNodes": 2,
            "virtualMachineConfiguration": MACHINE,
        }
        client.create_pool(body)
        job: Any = {"id": "train", "displayName": HOSTILE, "poolInfo": {"poolId": "gpus"}}
        client.create_job(job)
        task: Any = {
            "id": "hostile",
            "displayName": HOSTILE,
            "commandLine": f"/bin/sh -c \"echo '{HOSTILE}'; printf '\\033[31m' >&2; "
            f"echo '<b>' > 'wd/{quote('<i>', safe='')}.html'; touch '<img src=x>'\"",
            "environmentSettings": [{"name": "MY_SECRET", "value": "hunter2"}],
        }
        client.create_task("train", task)
        found.things.wait_task("train", "hostile")
        yield found


def test_every_section_of_an_empty_account_says_what_to_do(empty: Pages) -> None:
    shown = {path: empty.text(path) for path in SECTIONS}
    assert "az batch pool create" in shown["/"]
    assert empty.server.url in shown["/"]
    assert "az batch job create" in shown["/jobs"]
    assert "az batch job-schedule create" in shown["/schedules"]
    assert "There are no rules" in shown["/control"]
    assert "curl" in shown["/requests"]


@pytest.mark.attack
@pytest.mark.parametrize(
    "path", [*SECTIONS, "/pools/x", "/pulse", "/download/task/a/b", "/nowhere"]
)
def test_nobody_sees_anything_without_a_session(empty: Pages, path: str) -> None:
    for cookie in ("", f"batch-emulator-{urlsplit(empty.base).port}=1.a.b"):
        answer = plain_http.get(f"{empty.base}{path}", headers={"cookie": cookie})
        assert answer.status_code == 401
        assert "page-links" in answer.text


@pytest.mark.attack
def test_link_is_valid_once_and_its_cookie_is_out_of_reach_of_scripts(empty: Pages) -> None:
    link = _link_of(empty.server)
    answer = plain_http.get(f"{link}&pool=a%26b")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?pool=a%26b"
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    again = plain_http.get(link)
    assert again.status_code == 403
    assert "set-cookie" not in again.headers
    assert _link_of(empty.server) != link
    assert plain_http.get(f"{empty.base}/?token=").status_code == 403


def test_admin_api_makes_a_link_only_for_the_account_key(empty: Pages) -> None:
    address = f"{empty.server.url}/_emulator/page-links"
    assert plain_http.post(address).status_code == 403
    made = plain_http.post(address, headers=BEARER)
    assert made.status_code == 201
    assert plain_http.get(made.json()["url"]).status_code == 303


def test_admin_api_makes_no_link_without_a_page() -> None:
    with Server() as server:
        bearer = {"Authorization": f"Bearer {server.key}"}
        answer = plain_http.post(f"{server.url}/_emulator/page-links", headers=bearer)
        assert answer.status_code == 409
        assert server.page_link is None


def test_link_in_another_website_signs_in_without_a_redirect(empty: Pages) -> None:
    link = plain_http.post(f"{empty.server.url}/_emulator/page-links", headers=BEARER).json()["url"]
    answer = plain_http.get(link, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert "set-cookie" in answer.headers
    assert '<meta http-equiv="refresh" content="0;url=/">' in answer.text


@pytest.mark.attack
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1.evil.example:80", ""])
def test_other_hosts_are_refused(empty: Pages, host: str) -> None:
    assert empty.get("/", host=host).status_code == 403
    assert plain_http.get(_link_of(empty.server), headers={"host": host}).status_code == 403


@pytest.mark.attack
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_websites_cannot_act(empty: Pages, headers: dict[str, str]) -> None:
    given = {"sec-fetch-site": "same-origin", **headers}
    if "sec-fetch-site" in headers:
        given["origin"] = empty.base
    emulator = empty.server.emulator
    assert emulator is not None
    before = emulator.clock.now()
    form = {"push": "PT1H", "sure": "yes"}
    answer = empty.browser.post(f"{empty.base}/act/push-clock", data=form, headers=given)
    assert answer.status_code == 403
    assert (emulator.clock.now() - before).total_seconds() < 3600


@pytest.mark.attack
def test_other_websites_cannot_read(empty: Pages) -> None:
    for site in ("cross-site", "same-site"):
        answer = empty.get("/", **{"sec-fetch-site": site})
        assert answer.status_code == 403
        assert empty.get("/static/page.js", **{"sec-fetch-site": site}).status_code == 403


@pytest.mark.attack
def test_port_of_the_account_still_refuses_pages(pages: Pages) -> None:
    answer = pages.browser.get(f"{pages.server.url}/pools", headers={"origin": pages.base})
    assert answer.status_code == 403
    assert pages.browser.get(f"{pages.server.url}/_emulator/events").status_code == 403


@pytest.mark.parametrize(
    "path", ["/", "/nowhere", "/pools/none", "/static/page.js", "/static/none", "/pulse"]
)
def test_every_answer_has_the_headers_of_the_policy(pages: Pages, path: str) -> None:
    for answer in (pages.get(path), plain_http.get(f"{pages.base}{path}")):
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "cache-control" in answer.headers


def test_nothing_inline_and_nothing_from_elsewhere(pages: Pages) -> None:
    for path in (*SECTIONS, "/pools/gpus", "/jobs/train/tasks/hostile", "/act/resize?pool=gpus"):
        text = pages.text(path)
        assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:", text)
        assert re.findall(r"<script[^>]*>", text) == [SCRIPT]
        assert not re.search(r'(?:src|href)="(?!/|#)', text)


@pytest.mark.parametrize("path", ["page.css", "page.js", "icon.svg"])
def test_files_of_the_page_are_served(pages: Pages, path: str) -> None:
    assert pages.get(f"/static/{path}").status_code == 200


@pytest.mark.attack
@pytest.mark.parametrize("path", ["../server.py", "..%2fserver.py", "", "page.py"])
def test_no_other_file_is_served(pages: Pages, path: str) -> None:
    assert pages.get(f"/static/{path}").status_code == 404


def test_own_script_is_short() -> None:
    script = Path(__file__).parents[2] / "batch_emulator" / "page" / "static" / "page.js"
    assert len(script.read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.attack
@pytest.mark.parametrize(
    "path",
    [
        "/pools/gpus",
        "/jobs",
        "/jobs/train",
        "/jobs/train/tasks/hostile",
        "/files/task/train/hostile?path=stdout.txt",
        f"/pools/{quote(HOSTILE, safe='')}",
        f"/files/task/train/hostile?path={quote(HOSTILE)}",
        f"/requests?path={quote(HOSTILE)}",
        f"/events?about={quote(HOSTILE)}",
        f"/act/resize?pool={quote(HOSTILE)}&back={quote(HOSTILE)}",
        f"/act/{quote(HOSTILE, safe='')}",
        f"/timeline?pool={quote(HOSTILE)}",
    ],
)
def test_names_and_outputs_are_never_interpreted(pages: Pages, path: str) -> None:
    text = pages.get(path).text
    assert HOSTILE not in text
    assert "alert(1)" not in text or "&lt;script&gt;" in text
    assert "<img" not in text
    assert "\x1b" not in text


@pytest.mark.attack
def test_bodies_of_requests_are_escaped_and_masked(pages: Pages) -> None:
    task: Any = {
        "id": "masked",
        "commandLine": f"/bin/echo {KEY}",
        "environmentSettings": [{"name": "API_KEY", "value": "hunter2"}],
        "resourceFiles": [
            {"httpUrl": "https://a.example/b?sv=1&sig=c2VjcmV0", "filePath": HOSTILE},
        ],
    }
    pages.things.client.create_task("train", task)
    listed = pages.text("/requests?method=POST&operation=Task_Add")
    newest = re.search(r'href="(/requests/\d+)"', listed)
    assert newest is not None
    shown = pages.text(newest[1])
    assert "masked" in shown
    assert "SharedKey contract:•••" in shown
    assert "sv=1&amp;sig=•••" in shown
    assert HOSTILE not in shown
    for path in (newest[1], "/jobs/train/tasks/masked", "/jobs/train", "/requests"):
        text = pages.text(path)
        assert KEY not in text
        assert "c2VjcmV0&quot;" not in text
        assert "hunter2" not in text
        assert re.search(r"SharedKey \w+:[\w+/]", text) is None


def test_requests_are_found_by_method_status_and_path(pages: Pages) -> None:
    plain_http.get(f"{pages.server.url}/pools/nowhere?api-version=2024-07-01")
    found = pages.text("/requests?method=GET&status=4&path=nowhere")
    assert "/pools/nowhere" in found
    assert "Pool_Get" in found
    assert "No request passes" in pages.text("/requests?method=PUT&status=5")


def test_request_that_is_not_kept_is_not_found(pages: Pages) -> None:
    for number in ("999999", "x", "9" * 40):
        assert pages.get(f"/requests/{number}").status_code == 404


def test_pool_node_and_timeline_are_shown(pages: Pages) -> None:
    nodes = pages.things.wait_nodes("gpus", 2)
    text = pages.text("/pools/gpus")
    assert all(node.id in text for node in nodes)
    assert "train/hostile, completed" in pages.text("/timeline")
    shown = pages.text(f"/nodes/gpus/{nodes[0].id}")
    assert "startup" in shown or "workitems" in shown
    assert "Take offline" in shown


def test_formula_is_shown_with_its_evaluation_and_its_error(pages: Pages) -> None:
    body: Any = {
        "id": "scaled",
        "vmSize": "standard_d2s_v3",
        "enableAutoScale": True,
        "autoScaleFormula": "$TargetDedicatedNodes = 1 / 0; // <b>",
        "virtualMachineConfiguration": MACHINE,
    }
    pages.things.client.create_pool(body)

    def evaluated() -> str | None:
        text = pages.text("/pools/scaled")
        return text if "Last evaluation" in text and 'class="errors"' in text else None

    assert "// &lt;b&gt;" in eventually(evaluated)
    assert "formula" in pages.text("/")


def test_task_is_shown_with_output_files_and_everything_else(pages: Pages) -> None:
    text = pages.text("/jobs/train/tasks/hostile")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\\x1b[31m" in text
    assert "stdout.txt" in text
    assert "hunter2" not in text
    folder = pages.text("/jobs/train/tasks/hostile?folder=wd")
    assert "&lt;img src=x&gt;" in folder
    assert "<img" not in folder


@pytest.mark.attack
def test_files_are_downloaded_as_attachments_only(pages: Pages) -> None:
    answer = pages.get("/download/task/train/hostile?path=stdout.txt")
    assert answer.status_code == 200
    assert HOSTILE in answer.text
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''stdout.txt"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-security-policy"] == POLICY
    for path in ("../../../../state.sqlite", "/etc/passwd", "none"):
        assert pages.get(f"/download/task/train/hostile?path={quote(path)}").status_code >= 400


def test_pulse_changes_with_events_and_requests(pages: Pages) -> None:
    before = json.loads(pages.text("/pulse"))
    assert json.loads(pages.text("/pulse")) == before  # looking is no change
    plain_http.get(f"{pages.server.url}/_emulator/health")
    after = json.loads(pages.text("/pulse"))
    assert after["request"] == before["request"] + 1


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_every_action_shows_its_request_and_a_command_first(pages: Pages, name: str) -> None:
    action = ACTIONS[name]
    names = dict.fromkeys(action.names, "it's")
    given = {field.name: field.default or "7" for field in action.fields}
    text = pages.text(f"/act/{name}?{httpx.QueryParams({**names, **given})}")
    assert ("curl -X" in text) == action.is_admin
    assert ("az batch" in text) == (action.cli.startswith("az "))
    assert ("client." in text) == (name == "reimage")
    assert f"{action.method} /" in text
    assert ("Go on" in text) == bool(action.loses)


def test_call_of_the_sdk_that_an_action_shows_does_the_same(pages: Pages) -> None:
    [node, _] = pages.things.wait_nodes("gpus", 2)
    given = {"pool": "gpus", "node": node.id}
    assert pages.server.emulator is not None
    call = ACTIONS["reimage"].command(given, pages.server.emulator.settings)
    newest = pages.admin("/events")["value"][-1]["number"]
    exec(call, {"client": pages.things.client})
    found = pages.admin(f"/events?after={newest}")["value"]
    assert "reimaging" in [event["value"] for event in found]
    pages.things.wait_nodes("gpus", 2)


def test_action_that_loses_something_asks_first(pages: Pages) -> None:
    answer = pages.act("delete-job", sure=False, job="train")
    assert answer.status_code == 400
    assert "Confirm first" in answer.text
    for path in ("/act/delete-job?sure=yes&job=train", "/act/reset"):
        answer = pages.browser.post(f"{pages.base}{path}", headers={"origin": pages.base})
        assert answer.status_code == 400
    assert pages.things.client.get_job("train").id == "train"


@pytest.mark.feature(60)
def test_eviction_from_the_page_evicts_the_node(pages: Pages) -> None:
    [node, _] = pages.things.wait_nodes("gpus", 2)
    newest = pages.admin("/events")["value"][-1]["number"]
    back = "/pools/gpus?state=idle"
    answer = pages.act("evict", pool="gpus", node=node.id, notice="0", back=back)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{back}&done=evict"
    found = pages.admin(f"/events?after={newest}")["value"]
    assert ("node.evict", f"gpus/{node.id}") in [(e["kind"], e["entity"]) for e in found]
    pages.things.wait_nodes("gpus", 2)


def test_resize_fault_and_clock_from_the_page(pages: Pages) -> None:
    body: Any = {
        "id": "sized",
        "vmSize": "standard_d2s_v3",
        "virtualMachineConfiguration": MACHINE,
    }
    pages.things.client.create_pool(body)
    eventually(lambda: pages.things.client.get_pool("sized").allocation_state == "steady")
    assert pages.act("resize", pool="sized", targetDedicatedNodes="1").status_code == 303
    assert pages.things.client.get_pool("sized").target_dedicated_nodes == 1
    given = {"operation": "Pool_List", "code": "ServerBusy", "count": "1"}
    assert pages.act("plan-fault", sure=False, **given).status_code == 303
    assert "Pool_List" in pages.text("/control")
    assert pages.act("forget-faults").status_code == 303
    before = pages.server.emulator
    assert before is not None
    now = before.clock.now()
    assert pages.act("push-clock", push="PT1H").status_code == 303
    assert (before.clock.now() - now).total_seconds() > 3600
    assert "1 h" in pages.text("/control")


def test_looking_at_pages_meets_no_planned_fault(pages: Pages) -> None:
    assert pages.act("plan-fault", sure=False, operation="*", code="ServerBusy").status_code == 303
    for path in ("/", "/jobs", "/jobs/train", "/pools/gpus"):
        pages.text(path)
    assert pages.act("resize", pool="gpus", targetLowPriorityNodes="2").status_code == 503
    [row] = pages.text("/control").split("<tr>")[2:]
    assert "rule-1" in row
    assert ">0</td>" in row  # left
    assert ">1</td>" in row  # hits


def test_refused_action_says_why_and_keeps_the_values(pages: Pages) -> None:
    answer = pages.act("resize", pool="none", targetDedicatedNodes="3")
    assert answer.status_code == 404
    assert "PoolNotFound" in answer.text
    assert 'value="3"' in answer.text
    answer = pages.act("resize", pool="gpus", targetDedicatedNodes="<many>")
    assert answer.status_code == 400
    assert "&lt;many&gt;" in answer.text
    assert pages.act("nothing").status_code == 404
    assert pages.act("evict").status_code == 400


def test_tasks_and_jobs_end_from_the_page(pages: Pages) -> None:
    job = pages.things.job("gpus")
    task = pages.things.task(job, "/bin/sleep 600")
    pages.things.wait_task(job, task, "running")
    assert "Terminate" in pages.text(f"/jobs/{job}/tasks/{task}")
    assert pages.act("terminate-task", job=job, task=task).status_code == 303
    pages.things.wait_task(job, task)
    assert "Run again" in pages.text(f"/jobs/{job}/tasks/{task}")
    assert pages.act("reactivate-task", job=job, task=task).status_code == 303
    assert (
        pages.act("delete-job", job=job, back="/jobs").headers["location"]
        == "/jobs?done=delete-job"
    )


def test_second_person_is_told_that_it_was_done(pages: Pages) -> None:
    job = pages.things.job("none yet")
    task = pages.things.task(job)
    assert pages.act("terminate-task", job=job, task=task).status_code == 303
    answer = pages.act("terminate-task", job=job, task=task)
    assert answer.status_code == 409
    assert "TaskCompleted" in answer.text


@pytest.mark.attack
@pytest.mark.parametrize("back", ["//evil.example", "/\\evil.example", "https://evil.example", ""])
def test_action_comes_back_to_this_page_only(pages: Pages, back: str) -> None:
    answer = pages.act("forget-faults", back=back)
    assert answer.headers["location"] == "/?done=forget-faults"


@pytest.mark.attack
@pytest.mark.parametrize("step", ["%00", "%ff", "..", "%2e%2e%2f", "x" * 300, "%F0%9F", "'", "$"])
@pytest.mark.parametrize("query", ["", "next=%ff", "state='", "folder=%ff..", "path=%00&path=1"])
def test_hostile_addresses_are_no_error_of_the_page(pages: Pages, step: str, query: str) -> None:
    sections = ("pools", "jobs", "schedules", "requests", "act", f"nodes/{step}", f"files/{step}/a")
    paths = [f"/{each}/{step}" for each in sections]
    paths += [f"/jobs/train/tasks/{step}", f"/files/task/train/{step}", f"/download/task/a/{step}"]
    paths += [f"/act/{name}" for name in ("evict", "resize", "push-clock")]
    for path in (*paths, "/", "/jobs", "/events", "/requests", "/timeline"):
        status = pages.get(f"{path}?{query}&pool={step}&node={step}&before={step}").status_code
        assert status < 500, path


@pytest.mark.attack
def test_large_form_is_refused(pages: Pages) -> None:
    answer = pages.act("plan-fault", operation="x" * 300_000)
    assert answer.status_code == 413


def test_only_reading_and_actions_are_answered(pages: Pages) -> None:
    for method in ("POST", "PUT", "DELETE"):
        headers = {"origin": pages.base}
        answer = pages.browser.request(method, f"{pages.base}/pools/gpus", headers=headers)
        assert answer.status_code == 405


def test_lists_of_many_tasks_have_pages(pages: Pages) -> None:
    job = pages.things.job("none yet")
    tasks: list[Any] = [{"id": f"t{n:03}", "commandLine": "/bin/true"} for n in range(130)]
    pages.things.client.create_tasks(job, tasks)
    first = pages.text(f"/jobs/{job}?state=active")
    assert "t099" in first
    assert "t100" not in first
    more = re.search(r'href="(/jobs/[^"]*next=[^"]*)"', first)
    assert more is not None
    second = pages.text(more[1].replace("&amp;", "&"))
    assert "t129" in second
    assert "Next page" not in second


def test_preparation_of_a_job_is_shown_by_node(pages: Pages) -> None:
    job: Any = {
        "id": "prepared",
        "poolInfo": {"poolId": "gpus"},
        "jobPreparationTask": {"commandLine": "/bin/true"},
    }
    pages.things.client.create_job(job)
    pages.things.wait_task("prepared", pages.things.task("prepared"))
    text = pages.text("/jobs/prepared")
    assert "Preparation and release" in text
    assert "<td>preparation</td>" in text


def test_lists_of_many_pools_have_pages(tmp_path: Path) -> None:
    with _serve(tmp_path / "data") as server:
        found = _signed_in(server)
        for n in range(103):
            found.things.pool(id=f"p{n:03}")
        first = found.text("/")
        assert "p099" in first
        assert "p100" not in first
        more = re.search(r'href="(/\?next=[^"]*)"', first)
        assert more is not None
        assert "p102" in found.text(more[1])


def test_session_outlives_a_restart_with_the_same_key(tmp_path: Path) -> None:
    with _serve(tmp_path / "data") as server:
        browser = _signed_in(server).browser
        [cookie] = browser.cookies.jar
    with _serve(tmp_path / "data") as server:
        base = _link_of(server).partition("/?")[0]
        name = f"batch-emulator-{urlsplit(base).port}"
        answer = plain_http.get(f"{base}/", headers={"cookie": f"{name}={cookie.value}"})
        assert answer.status_code == 200


def test_pages_are_small(pages: Pages) -> None:
    sizes = {path: len(pages.text(path)) for path in (*SECTIONS, "/pools/gpus", "/jobs/train")}
    assert max(sizes.values()) < 120_000, sizes
