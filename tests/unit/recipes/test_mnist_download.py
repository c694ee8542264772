"""The downloader of the MNIST recipe: mirrors, checks of a folder, and the digits as fallback."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.loopback import listening
from tests.unit.recipes.test_mnist import load_module


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    load_module("idx", monkeypatch)
    return load_module("download", monkeypatch)


@dataclass
class Mirror:
    """A web server whose faults a test chooses; `ranges` records what was asked for."""

    files: dict[str, bytes]
    cut_after: int | None = None  # bytes of the next response before the connection breaks
    status: int | None = None
    ignores_ranges: bool = False
    ranges: list[str | None] = field(default_factory=list[str | None])
    url: str = ""


def _handler(mirror: Mirror) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            mirror.ranges.append(asked)
            body = mirror.files.get(self.path.lstrip("/"))
            if mirror.status or body is None:
                self.send_error(mirror.status or 404)
                return
            start = int(asked.split("=")[1].rstrip("-")) if asked else 0
            if mirror.ignores_ranges:
                start = 0
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            end = len(body) if mirror.cut_after is None else start + mirror.cut_after
            self.wfile.write(body[start:end])
            mirror.cut_after = None
            self.close_connection = True

    return Handler


@pytest.fixture
def mirror() -> Generator[Mirror]:
    yield from _serve(Mirror({"file": b"x" * 300_000}))


@pytest.fixture
def other() -> Generator[Mirror]:
    yield from _serve(Mirror({"file": b"x" * 300_000}))


def _serve(mirror: Mirror) -> Iterator[Mirror]:
    with listening(_handler(mirror)) as url:
        mirror.url = f"{url}/"
        yield mirror


GOOD = hashlib.sha256(b"x" * 300_000).hexdigest()


@dataclass
class Fetch:
    """Fetches `file` from mirrors; `seen` are the byte counts that were reported."""

    module: ModuleType
    table: Any = None
    seen: list[int] = field(default_factory=list[int])

    def __call__(self, folder: Path, *mirrors: Mirror) -> bool:
        if mirrors:
            self.table = self.module.Mirrors(tuple(mirror.url for mirror in mirrors))
        return self.module.fetch_file("file", GOOD, folder, self.table, self.seen.append)


@pytest.fixture
def fetch(download: ModuleType) -> Fetch:
    return Fetch(download)


def test_file_is_downloaded_and_progress_ends_at_its_size(
    tmp_path: Path, mirror: Mirror, fetch: Fetch
) -> None:
    assert fetch(tmp_path, mirror)
    assert (tmp_path / "file").read_bytes() == mirror.files["file"]
    assert fetch.seen == sorted(fetch.seen)
    assert fetch.seen[-1] == 300_000
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_cut_download_is_resumed(tmp_path: Path, mirror: Mirror, fetch: Fetch) -> None:
    mirror.cut_after = 100_000
    assert fetch(tmp_path, mirror)
    assert mirror.ranges == [None, "bytes=100000-"]


def test_part_of_an_earlier_command_is_continued(
    tmp_path: Path, mirror: Mirror, fetch: Fetch
) -> None:
    (tmp_path / ".file.part").write_bytes(b"x" * 250_000)
    assert fetch(tmp_path, mirror)
    assert mirror.ranges == ["bytes=250000-"]


def test_complete_part_is_accepted(tmp_path: Path, mirror: Mirror, fetch: Fetch) -> None:
    (tmp_path / ".file.part").write_bytes(b"x" * 300_000)
    assert fetch(tmp_path, mirror)


def test_mirror_without_ranges_starts_over(tmp_path: Path, mirror: Mirror, fetch: Fetch) -> None:
    mirror.ignores_ranges = True
    (tmp_path / ".file.part").write_bytes(b"y" * 250_000)
    assert fetch(tmp_path, mirror)


def test_cut_download_continues_at_the_next_mirror(
    tmp_path: Path, mirror: Mirror, other: Mirror, fetch: Fetch
) -> None:
    mirror.files["file"] = b"x" * 120_000
    mirror.cut_after = 100_000
    (tmp_path / ".file.part").write_bytes(b"x" * 120_000)
    assert fetch(tmp_path, mirror, other)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_failed_mirror_is_not_asked_again(
    tmp_path: Path, mirror: Mirror, other: Mirror, fetch: Fetch, status: int
) -> None:
    mirror.status = status
    assert fetch(tmp_path, mirror, other)
    assert list(fetch.table.unreachable) == [mirror.url]
    (tmp_path / "file").unlink()
    assert fetch(tmp_path)
    assert len(mirror.ranges) == 1


def test_wrong_content_is_removed(
    tmp_path: Path, mirror: Mirror, other: Mirror, fetch: Fetch
) -> None:
    mirror.files["file"] = b"evil" * 75_000
    assert fetch(tmp_path, mirror, other)
    assert "SHA-256" in fetch.table.unreachable[mirror.url]
    assert other.ranges == [None]
    (tmp_path / "alone").mkdir()
    assert not fetch(tmp_path / "alone", mirror)
    assert not list((tmp_path / "alone").iterdir())


def test_reasons_of_unreachable_mirrors_are_recorded(tmp_path: Path, fetch: Fetch) -> None:
    assert not fetch(tmp_path, Mirror({}, url="http://127.0.0.1:9/"))
    assert "refused" in fetch.table.unreachable["http://127.0.0.1:9/"]


@dataclass
class Downloader:
    """`download.py` with a mirror that serves a small data set in the place of MNIST."""

    module: ModuleType
    mirror: Mirror
    capsys: pytest.CaptureFixture[str]
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def run(self, verb: str, folder: Path) -> dict[str, Any]:
        """Return the last line that one run prints, and append the others to `lines`."""
        folder.mkdir(exist_ok=True)
        code = self.module.main(verb, folder)
        *progress, reply = map(json.loads, self.capsys.readouterr().out.splitlines())
        self.lines += progress
        assert code == ("code" in reply)
        return reply


@pytest.fixture
def published(
    tmp_path: Path,
    mirror: Mirror,
    download: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Downloader:
    folder = _small_mnist(download, tmp_path / "published")
    mirror.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files = {
        name: (len(mirror.files[name]), _sha256(mirror.files[name])) for name in download.FILES
    }
    monkeypatch.setattr(download, "FILES", files)
    monkeypatch.setattr(download, "MIRRORS", (mirror.url,))
    return Downloader(download, mirror, capsys)


def _small_mnist(download: ModuleType, folder: Path, train: int = 6, test: int = 2) -> Path:
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("t10k", test)):
        images = (bytes([n % 256]) * 784 for n in range(count))
        download.write_idx(folder / f"{name}-images-idx3-ubyte.gz", (count, 28, 28), images)
        labels = (bytes([n % 10]) for n in range(count))
        download.write_idx(folder / f"{name}-labels-idx1-ubyte.gz", (count,), labels)
    return folder


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_mnist_is_downloaded_from_a_mirror(tmp_path: Path, published: Downloader) -> None:
    reply = published.run("fetch", tmp_path / "data")
    assert reply == {"name": "mnist", "files": list(published.module.FILES)}
    last = published.lines[-1]
    assert last["done"] == last["total"] == sum(map(len, published.mirror.files.values()))
    for name, content in published.mirror.files.items():
        assert (tmp_path / "data" / name).read_bytes() == content


def test_only_missing_and_damaged_files_are_downloaded(
    tmp_path: Path, published: Downloader
) -> None:
    published.run("fetch", tmp_path / "data")
    name = next(iter(published.mirror.files))
    (tmp_path / "data" / name).write_bytes(b"rot")
    published.run("fetch", tmp_path / "data")
    assert len(published.mirror.ranges) == 5
    assert (tmp_path / "data" / name).read_bytes() == published.mirror.files[name]


@pytest.mark.slow
def test_digits_are_the_fallback_and_mirrors_are_tried_again(
    tmp_path: Path, published: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.mirror.status = 503
    installed: list[Path] = []

    def install(target: Path) -> Path:
        """Replace the wheel of scikit-learn, a download of 9 MB."""
        installed.append(target)
        target.mkdir()
        rows = "\n".join(",".join(["8.0"] * 64 + [f"{n % 10}.0"]) for n in range(1797))
        (target / "digits.csv.gz").write_bytes(gzip.compress(rows.encode()))
        return target / "digits.csv.gz"

    monkeypatch.setattr(published.module, "fetch_csv", install)
    first = published.run("fetch", tmp_path / "data")
    assert (first["name"], first["source"]) == ("sklearn-digits", "fallback")
    assert first["notice"].startswith("NOT MNIST")
    files = {path.name for path in (tmp_path / "data" / first["folder"]).iterdir()}
    assert files == set(published.module.FILES)
    assert published.run("fetch", tmp_path / "data") == first
    assert len(installed) == 1
    assert published.run("check", tmp_path / "data" / first["folder"])["name"] == "mnist-custom"
    published.mirror.status = None
    assert published.run("fetch", tmp_path / "data")["name"] == "mnist"


def test_failure_of_mirrors_and_digits_asks_for_a_folder(
    tmp_path: Path, published: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.mirror.status = 503
    monkeypatch.delenv("RUNNER_UV", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    reply = published.run("fetch", tmp_path / "data")
    assert reply["code"] == "R-DATA-MISSING"
    assert "--data" in reply["fix"]
    assert published.mirror.url in reply["why"]
    assert "uv is missing" in reply["why"]
    assert not list((tmp_path / "data").iterdir())


def test_partial_mnist_gets_another_name_and_a_notice(
    tmp_path: Path, published: Downloader
) -> None:
    reply = published.run("check", tmp_path / "published")
    assert reply["name"] == "mnist-custom"
    assert "6 training and 2 test images" in reply["notice"]
    assert not published.mirror.ranges


def test_complete_mnist_is_recognised_in_any_packing(
    download: ModuleType, mnist_folder: Path
) -> None:
    assert download.check(mnist_folder) == {"name": "mnist", "files": list(download.FILES)}


@pytest.fixture
def mnist_folder() -> Path:
    folder = Path(__file__).parents[4] / "shared" / "data" / "mnist"
    if not folder.is_dir():
        pytest.skip("no MNIST beside the checkout")
    return folder


def _damage(module: ModuleType, folder: Path, how: str) -> None:
    images = folder / "train-images-idx3-ubyte.gz"
    labels = folder / "train-labels-idx1-ubyte.gz"
    if how == "missing":
        images.unlink()
    elif how == "not gzip":
        images.write_bytes(b"hello")
    elif how == "truncated":
        images.write_bytes(images.read_bytes()[:-12])
    elif how == "short":
        module.write_idx(images, (6, 28, 28), [bytes(784)])
    elif how == "magic":
        module.write_idx(images, (6,), [bytes(6)])
    elif how == "shape":
        module.write_idx(images, (6, 8, 8), [bytes(64)] * 6)
    elif how == "counts":
        module.write_idx(labels, (5,), [bytes(5)])
    elif how == "label":
        module.write_idx(labels, (6,), [bytes([1, 2, 3, 4, 5, 10])])
    else:
        module.write_idx(images, (0, 28, 28), [])
        module.write_idx(labels, (0,), [])


@pytest.mark.parametrize(
    "how",
    ["missing", "not gzip", "truncated", "short", "magic", "shape", "counts", "label", "empty"],
)
def test_folder_without_valid_mnist_files_is_rejected(
    tmp_path: Path, published: Downloader, how: str
) -> None:
    _damage(published.module, tmp_path / "published", how)
    reply = published.run("check", tmp_path / "published")
    assert reply["code"] in {"R-DATA-FORMAT", "R-DATA-PATH"}
    assert "--data" in reply["fix"]


def test_idx_files_depend_on_their_contents_only(tmp_path: Path, download: ModuleType) -> None:
    _small_mnist(download, tmp_path / "a")
    _small_mnist(download, tmp_path / "b")
    written = list((tmp_path / "a").iterdir())
    assert len(written) == 4
    for path in written:
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_every_sixth_digit_is_a_test_digit(tmp_path: Path, download: ModuleType) -> None:
    download.write_digits([([16] * 64, n % 10) for n in range(12)], tmp_path)
    assert download.load_digits(tmp_path, "train").count == 10
    assert download.load_digits(tmp_path, "test").count == 2


def test_enlarged_digit_has_the_margin_of_mnist(download: ModuleType) -> None:
    image = download.enlarge([16] * 64)
    assert len(image) == 784
    assert image[14 * 28 + 14] == 255
    assert set(image[: 4 * 28]) == {0}
    assert {image[row * 28 + column] for row in range(28) for column in (0, 3, 24, 27)} == {0}


def test_enlarging_is_smooth_and_keeps_the_order(download: ModuleType) -> None:
    image = download.enlarge(list(range(0, 16, 2)) * 8)
    middle = image[14 * 28 + 4 : 14 * 28 + 24]
    assert list(middle) == sorted(middle)
    assert len(set(middle)) > 8
