"""Azure Files: hostile requests."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from batch_emulator.files_share.routes import copies
from tests.contract.files_service import (
    ACCOUNT,
    Files,
    code_of,
    serving_files,
    sign,
    string_to_sign,
)
from tests.contract.server import eventually

XML = {"content-type": "application/xml"}


@pytest.mark.parametrize(
    "path",
    ["..", "../..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "a/../../x", "%2e%2e/%2e%2e", "a%5c..%5cb",
     ".", "a/./b", "a%00b", "a%0ab", "C:", "a|b", "con", "NUL", "a//b", "...", "%c0%ae%c0%ae/x",
     "%ff", "x" * 256, "%F0%9F%98%80" * 64, "/".join("d" * 251), "y" * 2049],
)  # fmt: skip
@pytest.mark.parametrize(("method", "query"), [("GET", ""), ("PUT", ""), ("DELETE", "")])
def test_invalid_path_is_refused(files: Files, path: str, method: str, query: str) -> None:
    share = files.share().share_name
    before = sorted(p.name for p in files.root.parent.iterdir())
    answer = raw(files, method, f"/{share}/{path}", query)
    assert answer == b"400"
    assert sorted(p.name for p in files.root.parent.iterdir()) == before


def raw(files: Files, method: str, path: str, query: str) -> bytes:
    """Return the status of a request with an unnormalised path."""
    tidy = files.send("GET", "/", "comp=list").request
    parts = urlsplit(files.url)
    headers = {n: v for n, v in tidy.headers.items() if n.startswith("x-ms-")}
    if method == "PUT":
        headers |= {"x-ms-type": "file", "x-ms-content-length": "1"}
    full = f"{parts.path}{path}"
    text = string_to_sign(method, full, query, headers, 0)
    headers["authorization"] = f"SharedKey {ACCOUNT}:{sign(text)}"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    target = full + (f"?{query}" if query else "")
    with socket.create_connection((parts.hostname or "", parts.port or 0), 300) as connection:
        head = f"{method} {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n{lines}"
        connection.sendall(f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        return connection.makefile("rb").readline().split()[1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<",
        b"\xff\xfe",
        b"<a/>",
        b"<SignedIdentifiers>",
        b"{}",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]><a/>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><a/>".encode("utf-16"),
        b"<?xml version='1.0' encoding='cp037'?>" + "<!DOCTYPE a><a/>".encode("cp037"),
        b"<SignedIdentifiers>" + b"<a>" * 50 + b"</a>" * 50 + b"</SignedIdentifiers>",
        b"<SignedIdentifiers>" + b" " * 1024**2 + b"</SignedIdentifiers>",
    ],
)
@pytest.mark.parametrize(
    ("path", "query"),
    [("", "comp=acl&restype=share"), ("/", "comp=properties&restype=service")],
)
def test_malformed_xml_is_refused(files: Files, path: str, query: str, body: bytes) -> None:
    target = path or f"/{files.share().share_name}"
    answer = files.send("PUT", target, query, XML, body)
    if not body and not path:  # no body means no policies
        assert answer.status_code == 200
    else:
        assert code_of(answer) == (400, "InvalidXmlDocument")


@pytest.mark.parametrize(
    "policy",
    [
        "<Id></Id>",
        f"<Id>{'x' * 65}</Id>",
        "<Id>a</Id><AccessPolicy><Permission>z</Permission></AccessPolicy>",
        "<Id>a</Id><AccessPolicy><Expiry>tomorrow</Expiry></AccessPolicy>",
    ],
)
def test_invalid_policy_is_refused(files: Files, policy: str) -> None:
    share = files.share()
    body = f"<SignedIdentifiers><SignedIdentifier>{policy}</SignedIdentifier></SignedIdentifiers>"
    answer = files.send("PUT", f"/{share.share_name}", "comp=acl&restype=share", XML, body.encode())
    assert code_of(answer) == (400, "InvalidXmlNodeValue")


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{", b"[]", b"null", b'{"permission": 5}', b""])
def test_invalid_permission_is_refused(files: Files, body: bytes) -> None:
    share = files.share().share_name
    answer = files.send("PUT", f"/{share}", "comp=filepermission&restype=share", {}, body)
    assert answer.status_code == 400


@pytest.mark.parametrize("year", ["0001", "1600", "9999"])
def test_first_and_last_years_of_the_calendar_are_accepted(files: Files, year: str) -> None:
    share = files.share()
    time = f"{year}-12-31T23:59:59.9999999Z"
    names = ("creation", "last-write", "change")
    headers = {f"x-ms-file-{name}-time": time for name in names}
    given = {"x-ms-type": "file", "x-ms-content-length": "1", **headers}
    answer = files.send("PUT", f"/{share.share_name}/f", "", given)
    assert answer.status_code == 201
    assert answer.headers["x-ms-file-creation-time"] == time
    assert files.send("HEAD", f"/{share.share_name}/f").status_code == 200
    include = "comp=list&include=timestamps&restype=directory"
    assert files.send("GET", f"/{share.share_name}", include).status_code == 200


def test_unsupported_conditions_are_refused_instead_of_ignored(files: Files) -> None:
    share = files.share()
    query = "comp=metadata&restype=share"
    answer = files.send("PUT", f"/{share.share_name}", query, {"if-match": '"0x1"'})
    assert code_of(answer) == (400, "ConditionHeadersNotSupported")


def test_more_than_five_policies_are_refused(files: Files) -> None:
    share = files.share()
    one = "<SignedIdentifier><Id>{}</Id></SignedIdentifier>"
    body = f"<SignedIdentifiers>{''.join(one.format(n) for n in range(6))}</SignedIdentifiers>"
    answer = files.send("PUT", f"/{share.share_name}", "comp=acl&restype=share", XML, body.encode())
    assert code_of(answer) == (400, "InvalidXmlDocument")


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"x-ms-write": "update", "x-ms-range": "bytes=0-9"}, b"123", (400, "InvalidHeaderValue")),
        ({"x-ms-write": "update", "x-ms-range": "bytes=9-0"}, b"", (400, "InvalidHeaderValue")),
        ({"x-ms-write": "update", "x-ms-range": "bytes=0-"}, b"1", (400, "InvalidHeaderValue")),
        ({"x-ms-write": "update", "x-ms-range": "bytes=-5"}, b"1", (400, "InvalidHeaderValue")),
        ({"x-ms-write": "update", "x-ms-range": "lines=0-1"}, b"12", (400, "InvalidHeaderValue")),
        ({"x-ms-write": "update"}, b"1", (400, "MissingRequiredHeader")),
        ({"x-ms-write": "destroy", "x-ms-range": "bytes=0-0"}, b"1", (400, "InvalidHeaderValue")),
        ({"x-ms-write": "clear", "x-ms-range": "bytes=0-0"}, b"1", (400, "InvalidHeaderValue")),
        (
            {"x-ms-write": "update", "x-ms-range": f"bytes=0-{4 * 1024**2}"},
            b"x" * (4 * 1024**2 + 1),
            (413, "RequestBodyTooLarge"),
        ),
        (
            {"x-ms-write": "update", "x-ms-range": "bytes=99999999999999999-99999999999999999"},
            b"1",
            (416, "InvalidRange"),
        ),
        (
            {"x-ms-write": "update", "x-ms-range": "bytes=0-0", "x-ms-file-last-write-time": "x"},
            b"1",
            (400, "InvalidHeaderValue"),
        ),
    ],
)
def test_invalid_range_is_refused(
    files: Files, headers: dict[str, str], body: bytes, expected: tuple[int, str]
) -> None:
    share = files.share()
    share.get_file_client("f").create_file(100)
    answer = files.send("PUT", f"/{share.share_name}/f", "comp=range", headers, body)
    assert code_of(answer) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ms-content-length": "-1"},
        {"x-ms-content-length": "1e3"},
        {"x-ms-content-length": "9" * 18},
        {"x-ms-content-length": str(4 * 1024**4 + 1)},
        {"x-ms-content-length": "1", "x-ms-type": "directory"},
        {"x-ms-content-length": "1", "x-ms-file-attributes": "Sparkling"},
        {"x-ms-content-length": "1", "x-ms-file-creation-time": "yesterday"},
        {"x-ms-content-length": "1", "x-ms-file-creation-time": "2024-13-01T00:00:00Z"},
        {"x-ms-content-length": "1", "x-ms-file-permission-key": "../../x"},
        {"x-ms-content-length": "1", "x-ms-meta-bad-name": "x"},
        {"x-ms-content-length": "1", "x-ms-meta-big": "x" * 9000},
        {"x-ms-content-length": "1", "x-ms-content-md5": "nonsense"},
        {},
    ],
)
def test_invalid_header_of_a_new_file_is_refused(files: Files, headers: dict[str, str]) -> None:
    share = files.share()
    given = {"x-ms-type": "file", **headers}
    answer = files.send("PUT", f"/{share.share_name}/f", "", given)
    assert answer.status_code == 400
    assert code_of(answer)[1] != ""
    assert list(share.list_directories_and_files()) == []


@pytest.mark.parametrize("quota", ["0", "-1", "x", "102401", "9" * 30])
def test_invalid_quota_is_refused(files: Files, quota: str) -> None:
    answer = files.send("PUT", "/never-made", "restype=share", {"x-ms-share-quota": quota})
    assert code_of(answer) == (400, "InvalidHeaderValue")


@pytest.mark.parametrize(
    "source",
    [
        "",
        "nonsense",
        "http://127.0.0.1/other/s/f",
        "http://[",
        "http://127.0.0.1/filesaccount/../x",
    ],
)
def test_invalid_rename_source_is_refused(files: Files, source: str) -> None:
    share = files.share()
    headers = {"x-ms-file-rename-source": source} if source else {}
    answer = files.send("PUT", f"/{share.share_name}/f", "comp=rename", headers)
    assert answer.status_code == 400


def test_rename_source_outside_the_share_is_refused(files: Files) -> None:
    share = files.share()
    (files.root.parent / "outside").write_text("x")
    for path in ("../../outside", "%2e%2e/%2e%2e/outside"):
        source = f"{files.url}/{share.share_name}/{path}"
        headers = {"x-ms-file-rename-source": source}
        answer = files.send("PUT", f"/{share.share_name}/f", "comp=rename", headers)
        assert code_of(answer) == (400, "InvalidResourceName")
    assert (files.root.parent / "outside").exists()


def test_unknown_verbs_and_queries_are_refused(files: Files) -> None:
    share = files.share().share_name
    assert files.send("PATCH", f"/{share}/f").status_code == 405
    assert files.send("POST", f"/{share}", "restype=share").status_code == 405
    assert files.send("GET", f"/{share}/f", "comp=nonsense").status_code == 400
    assert files.send("GET", "/", "comp=nonsense").status_code == 400
    assert files.send("PUT", f"/{share}").status_code in (400, 405)


def test_other_accounts_are_refused(files: Files) -> None:
    other = files.url.rsplit("/", 1)[0] + "/other"
    wrong = Files(other, files.root, None)
    answer = wrong.send("GET", "/", "comp=list")
    assert answer.status_code in (400, 403)


def test_truncated_body_writes_nothing(files: Files) -> None:
    share = files.share()
    file = share.get_file_client("f")
    file.upload_file(b"x" * 100)
    headers = {"x-ms-write": "update", "x-ms-range": "bytes=0-99"}
    whole = files.send("PUT", f"/{share.share_name}/f", "comp=range", headers, b"y" * 100)
    assert whole.status_code == 201
    signed = whole.request.headers
    parts = urlsplit(files.url)
    lines = "".join(f"{name}: {value}\r\n" for name, value in signed.items() if name != "host")
    with socket.create_connection((parts.hostname or "", parts.port or 0), 300) as connection:
        target = f"{parts.path}/{share.share_name}/f?comp=range"
        head = f"PUT {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n{lines}\r\n"
        connection.sendall(head.encode() + b"z" * 50)
    assert file.download_file().readall() == b"y" * 100


@pytest.mark.slow
def test_disconnected_reader_leaves_no_file_open(files: Files) -> None:
    share = files.share()
    share.get_file_client("f").create_file(256 * 1024**2)
    answer = files.send("GET", f"/{share.share_name}/f", "", {"x-ms-range": "bytes=0-"})
    signed = answer.request.headers
    parts = urlsplit(files.url)
    lines = "".join(f"{name}: {value}\r\n" for name, value in signed.items() if name != "host")
    for _ in range(5):
        with socket.create_connection((parts.hostname or "", parts.port or 0), 300) as connection:
            head = f"GET {parts.path}/{share.share_name}/f HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            connection.sendall(f"{head}{lines}\r\n".encode())
            assert connection.recv(12) == b"HTTP/1.1 206"
    eventually(lambda: not any(name.endswith(f"{share.share_name}/f") for name in open_files()))


def open_files() -> list[str]:
    """Return the open files of this process, which includes the file service."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(descriptor.readlink()))
    return found


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        listener.settimeout(300)
        yield listener


@pytest.mark.slow
def test_copies_from_silent_servers_do_not_block_other_requests(
    tmp_path: Path, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_TIMEOUT_S", 900.0)  # a request that waits for them times out
    with ThreadPoolExecutor(12) as clients, serving_files(tmp_path) as files:
        share = files.share()
        share.get_file_client("source").upload_file(b"abc")
        hole = {"x-ms-copy-source": f"http://127.0.0.1:{silent.getsockname()[1]}/file"}
        waiting = [
            clients.submit(files.send, "PUT", f"/{share.share_name}/f{number}", "", hole)
            for number in range(10)
        ]
        held = [silent.accept()[0] for _ in range(8)]
        headers = {"x-ms-copy-source": f"{files.url}/{share.share_name}/source"}
        assert files.send("PUT", f"/{share.share_name}/copy", "", headers).status_code == 202
        assert not any(copy.done() for copy in waiting)
    answers = [copy.result() for copy in waiting if copy.exception() is None]
    assert len(answers) >= len(
        held
    )  # a request that arrives while the server stops gets no response
    assert {code_of(answer) for answer in answers} == {(503, "ServerBusy")}


@pytest.mark.parametrize("action", ["update", "clear"])
def test_range_with_an_invalid_time_is_refused_before_it_is_written(
    files: Files, action: str
) -> None:
    share = files.share()
    share.get_file_client("file").upload_file(b"before")
    body = b"AFTER!" if action == "update" else b""
    headers = {
        "x-ms-write": action,
        "x-ms-range": "bytes=0-5",
        "x-ms-file-last-write-time": "yesterday",
    }
    answer = files.send("PUT", f"/{share.share_name}/file", "comp=range", headers, body)
    assert code_of(answer) == (400, "InvalidHeaderValue")
    assert (files.folder(share) / "file").read_bytes() == b"before"


@pytest.mark.slow
def test_recreation_of_a_file_waits_for_a_range_being_written(tmp_path: Path) -> None:
    """Otherwise the range would make the new file longer than requested."""
    with serving_files(tmp_path) as files, ThreadPoolExecutor(1) as client:
        share = files.share()
        share.get_file_client("file").upload_file(b"before")
        path = files.folder(share) / "file"
        assert files.shares is not None
        with files.shares.writing(path.stat().st_ino):
            headers = {"x-ms-type": "file", "x-ms-content-length": "2"}
            anew = client.submit(files.send, "PUT", f"/{share.share_name}/file", "", headers)
            assert wait([anew], 0.5).not_done
            assert path.read_bytes() == b"before"
        assert anew.result().status_code == 201
        assert path.read_bytes() == bytes(2)
