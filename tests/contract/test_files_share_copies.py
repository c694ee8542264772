"""Azure Files: copies, within the account and from other servers."""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler

import pytest

from tests.contract.files_service import ACCOUNT, KEY, Files, ranges_of, refusal, sdk
from tests.loopback import listening

CONTENT = bytes(range(256)) * 64


class _Origin(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if not self.path.startswith("/container/blob?sig=good"):
            self.send_error(403)
            return
        body, status = CONTENT, 200
        if span := self.headers.get("Range"):
            first, last = span.removeprefix("bytes=").split("-")
            body, status = CONTENT[int(first) : int(last) + 1], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "model/weights")
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def origin() -> Generator[str]:
    with listening(_Origin) as url:
        yield f"{url}/container/blob"


def test_copy_has_content_metadata_and_type_of_its_source(files: Files) -> None:
    share, other = files.share(), files.share()
    source = share.get_file_client("a b.txt")
    source.upload_file(
        b"data", metadata={"k": "v"}, content_settings=sdk.ContentSettings(content_type="a/b")
    )
    copy = other.get_file_client("copy")
    started = copy.start_copy_from_url(source.url)
    assert started["copy_status"] == "success"
    found = copy.get_file_properties()
    assert copy.download_file().readall() == b"data"
    assert (found.metadata, found.content_settings.content_type) == ({"k": "v"}, "a/b")
    assert found.copy.id == started["copy_id"]
    assert found.copy.progress == "4/4"
    assert found.copy.source == source.url


def test_copy_accepts_its_own_metadata_and_times(files: Files) -> None:
    share = files.share()
    source = share.get_file_client("s")
    made = datetime(2011, 1, 1, tzinfo=UTC)
    source.upload_file(b"x", metadata={"k": "v"}, file_last_write_time=made)
    copy = share.get_file_client("c")
    copy.start_copy_from_url(source.url, metadata={"n": "m"}, file_last_write_time="source")
    assert copy.get_file_properties().metadata == {"n": "m"}
    source_written = source.get_file_properties().last_write_time
    assert copy.get_file_properties().last_write_time == source_written


def test_copy_of_a_sparse_file_is_sparse(files: Files) -> None:
    share = files.share()
    source = share.get_file_client("s")
    source.create_file(2**30)
    source.upload_range(b"x" * 4096, offset=2**29, length=4096)
    copy = share.get_file_client("c")
    copy.start_copy_from_url(source.url)
    assert ranges_of(copy) == [(2**29, 2**29 + 4095)]
    assert copy.get_file_properties().size == 2**30


def test_copy_onto_itself_keeps_the_content(files: Files) -> None:
    file = files.share().get_file_client("f")
    file.upload_file(b"data")
    file.start_copy_from_url(file.url)
    assert file.download_file().readall() == b"data"


def test_abort_without_a_pending_copy_is_refused(files: Files) -> None:
    file = files.share().get_file_client("f")
    file.upload_file(b"data")
    with pytest.raises(Exception, match="NoPendingCopyOperation") as raised:
        file.abort_copy("some-id")
    assert refusal(raised) == (409, "NoPendingCopyOperation")


def test_a_file_is_copied_from_the_url_of_a_blob(files: Files, origin: str) -> None:
    share = files.share()
    copy = share.get_file_client("c")
    copy.start_copy_from_url(f"{origin}?sig=good")
    found = copy.get_file_properties()
    assert copy.download_file().readall() == CONTENT
    assert found.content_settings.content_type == "model/weights"
    assert found.copy.source == origin  # without the signature


def test_failed_copy_leaves_the_target_unchanged(files: Files, origin: str) -> None:
    share = files.share()
    copy = share.get_file_client("c")
    copy.upload_file(b"before")
    missing = share.get_file_client("missing").url
    closed = "http://127.0.0.1:9/x"
    for url, status in ((f"{origin}?sig=bad", 403), (missing, 404), (closed, 500)):
        with pytest.raises(Exception, match="CannotVerifyCopySource") as raised:
            copy.start_copy_from_url(url)
        assert refusal(raised)[0] == status
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/x", "nonsense"):
        with pytest.raises(Exception, match="InvalidHeaderValue"):
            copy.start_copy_from_url(url)
    assert copy.download_file().readall() == b"before"
    assert list((files.root / ".incoming").iterdir()) == []


def test_ranges_are_written_from_urls(files: Files, origin: str) -> None:
    share = files.share()
    source = share.get_file_client("s")
    source.upload_file(CONTENT)
    token = sdk.generate_file_sas(
        ACCOUNT, share.share_name, ["s"], KEY, permission="r",
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )  # fmt: skip
    target = share.get_file_client("t")
    target.create_file(1000)
    target.upload_range_from_url(f"{source.url}?{token}", 100, 50, 7)
    target.upload_range_from_url(f"{origin}?sig=good", 200, 50, 300)
    data = target.download_file().readall()
    assert data[100:150] == CONTENT[7:57]
    assert data[200:250] == CONTENT[300:350]
    assert set(data[:100]) == set(data[150:200]) == set(data[250:]) == {0}
    with pytest.raises(Exception, match="InvalidRange"):
        target.upload_range_from_url(f"{source.url}?{token}", 990, 50, 7)
    with pytest.raises(Exception, match="InvalidRange"):
        target.upload_range_from_url(f"{source.url}?{token}", 0, 50, len(CONTENT) - 10)


def test_copy_needs_authorization_for_its_source(files: Files) -> None:
    share, secret = files.share(), files.share()
    secret.get_file_client("s").upload_file(b"secret")
    expiry = datetime.now(UTC) + timedelta(hours=1)
    token = sdk.generate_share_sas(
        ACCOUNT, share.share_name, KEY, permission="rcwdl", expiry=expiry
    )
    target = sdk.ShareFileClient(files.url, share.share_name, "t", credential=token, retry_total=0)
    source = secret.get_file_client("s").url
    with pytest.raises(Exception, match="CannotVerifyCopySource"):
        target.start_copy_from_url(source)
    with pytest.raises(Exception, match="CannotVerifyCopySource"):
        target.start_copy_from_url(f"{source}?{token}")
    reading = sdk.generate_share_sas(ACCOUNT, secret.share_name, KEY, permission="r", expiry=expiry)
    target.start_copy_from_url(f"{source}?{reading}")
    assert target.download_file().readall() == b"secret"
