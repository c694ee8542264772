from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from runner.core.progress import Progress, ignore_progress
from runner.flows.data import mnist_download
from runner.flows.data.datasets import DatasetFile, resolve_dataset
from runner.flows.data.mnist_download import IMAGES, LABELS, Mirrors, fetch, read_idx, write_idx
from runner.protocol.errors import RunnerError
from tests.loopback import listening


@dataclass
class Mirror:
    """A web server whose faults a test chooses; `ranges` records what was asked for."""

    files: dict[str, bytes]
    cut_after: int | None = None  # bytes of the next answer before the line breaks
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


def _fetch(folder: Path, *mirrors: Mirror) -> tuple[bool, Mirrors, list[int]]:
    table = Mirrors([mirror.url for mirror in mirrors])
    seen: list[int] = []
    return fetch("file", GOOD, folder, table, seen.append), table, seen


def test_file_is_fetched_and_progress_ends_at_its_size(tmp_path: Path, mirror: Mirror) -> None:
    good, _, seen = _fetch(tmp_path, mirror)
    assert good
    assert (tmp_path / "file").read_bytes() == mirror.files["file"]
    assert seen == sorted(seen)
    assert seen[-1] == 300_000
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_cut_download_is_resumed_where_it_stopped(tmp_path: Path, mirror: Mirror) -> None:
    mirror.cut_after = 100_000
    good, _, _ = _fetch(tmp_path, mirror)
    assert good
    assert mirror.ranges == [None, "bytes=100000-"]


def test_part_of_an_earlier_command_is_continued(tmp_path: Path, mirror: Mirror) -> None:
    (tmp_path / ".file.part").write_bytes(b"x" * 250_000)
    good, _, _ = _fetch(tmp_path, mirror)
    assert good
    assert mirror.ranges == ["bytes=250000-"]


def test_part_that_is_whole_already_is_accepted(tmp_path: Path, mirror: Mirror) -> None:
    (tmp_path / ".file.part").write_bytes(b"x" * 300_000)
    assert _fetch(tmp_path, mirror)[0]


def test_mirror_without_ranges_starts_over(tmp_path: Path, mirror: Mirror) -> None:
    mirror.ignores_ranges = True
    (tmp_path / ".file.part").write_bytes(b"y" * 250_000)
    assert _fetch(tmp_path, mirror)[0]


def test_cut_download_goes_on_at_the_next_mirror(
    tmp_path: Path, mirror: Mirror, other: Mirror
) -> None:
    mirror.files["file"] = b"x" * 120_000  # and then it is gone
    mirror.cut_after = 100_000
    table = Mirrors([mirror.url, other.url])
    (tmp_path / ".file.part").write_bytes(b"x" * 120_000)
    assert fetch("file", GOOD, tmp_path, table, lambda _: None)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_broken_mirror_is_passed_over_for_good(
    tmp_path: Path, mirror: Mirror, other: Mirror, status: int
) -> None:
    mirror.status = status
    good, table, _ = _fetch(tmp_path, mirror, other)
    assert good
    assert list(table.unreachable) == [mirror.url]
    (tmp_path / "file").unlink()
    assert fetch("file", GOOD, tmp_path, table, lambda _: None)
    assert len(mirror.ranges) == 1


def test_wrong_content_is_thrown_away(tmp_path: Path, mirror: Mirror, other: Mirror) -> None:
    mirror.files["file"] = b"evil" * 75_000
    good, table, _ = _fetch(tmp_path, mirror, other)
    assert good
    assert "SHA-256" in table.unreachable[mirror.url]
    assert other.ranges == [None]
    (tmp_path / "alone").mkdir()
    assert not _fetch(tmp_path / "alone", mirror)[0]
    assert not list((tmp_path / "alone").iterdir())


def test_no_mirror_at_all_is_false_with_reasons(tmp_path: Path) -> None:
    table = Mirrors(["http://127.0.0.1:9/"])
    assert not fetch("file", GOOD, tmp_path, table, lambda _: None)
    assert "refused" in table.unreachable["http://127.0.0.1:9/"]


def _small_mnist(folder: Path, train: int = 6, test: int = 2) -> Path:
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("t10k", test)):
        images = (bytes([n % 256]) * 784 for n in range(count))
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", IMAGES, (count, 28, 28), images)
        labels = (bytes([n % 10]) for n in range(count))
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", LABELS, (count,), labels)
    return folder


@pytest.fixture
def published(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> tuple[Mirror, tuple[DatasetFile, ...]]:
    """A mirror that serves a small data set in the place of MNIST."""
    folder = _small_mnist(tmp_path / "published")
    mirror.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files = tuple(
        DatasetFile(file.name, len(mirror.files[file.name]), _sha256(mirror.files[file.name]))
        for file in mnist_download.FILES
    )
    monkeypatch.setattr(mnist_download, "FILES", files)
    monkeypatch.setattr(mnist_download, "MIRRORS", (mirror.url,))
    return mirror, files


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_mnist_comes_from_a_mirror_once_and_then_from_the_cache(
    tmp_path: Path, published: tuple[Mirror, tuple[DatasetFile, ...]]
) -> None:
    mirror, files = published
    steps: list[Progress] = []
    first = resolve_dataset("mnist", None, tmp_path / "home", steps.append)
    assert (first.name, first.source, first.notice) == ("mnist", "mirror", None)
    assert first.files == files
    total = sum(file.size_bytes for file in files)
    assert (steps[-1].state, steps[-1].done, steps[-1].total) == ("end", total, total)
    second = resolve_dataset("mnist", None, tmp_path / "home", steps.append)
    assert second.source == "cache"
    assert len(mirror.ranges) == 4


def test_damaged_cache_is_fetched_again(
    tmp_path: Path, published: tuple[Mirror, tuple[DatasetFile, ...]]
) -> None:
    mirror, files = published
    found = resolve_dataset("mnist", None, tmp_path / "home", ignore_progress)
    (found.folder / files[1].name).write_bytes(b"rot")
    again = resolve_dataset("mnist", None, tmp_path / "home", ignore_progress)
    assert again.source == "mirror"
    assert len(mirror.ranges) == 5
    assert _sha256((found.folder / files[1].name).read_bytes()) == files[1].sha256


def test_unreachable_mirrors_lead_to_the_digits_with_a_notice_and_are_tried_again(
    tmp_path: Path,
    published: tuple[Mirror, tuple[DatasetFile, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirror, _ = published
    mirror.status = 503
    made: list[Path] = []

    def fake_csv(target: Path) -> Path:
        """The wheel of scikit-learn is a download of 9 MB: its digits are made up here."""
        made.append(target)
        target.mkdir()
        rows = "\n".join(",".join(["8.0"] * 64 + [f"{n % 10}.0"]) for n in range(1797))
        (target / "digits.csv.gz").write_bytes(gzip.compress(rows.encode()))
        return target / "digits.csv.gz"

    monkeypatch.setattr(mnist_download, "_fetch_csv", fake_csv)
    first = resolve_dataset("mnist", None, tmp_path / "home", ignore_progress)
    assert (first.name, first.source) == ("sklearn-digits", "fallback")
    assert first.notice is not None
    assert first.notice.startswith("NOT MNIST")
    second = resolve_dataset("mnist", None, tmp_path / "home", ignore_progress)
    assert second.files == first.files
    assert len(made) == 1
    mirror.status = None
    assert resolve_dataset("mnist", None, tmp_path / "home", ignore_progress).source == "mirror"


def test_neither_mirror_nor_digits_says_what_to_pass(
    tmp_path: Path,
    published: tuple[Mirror, tuple[DatasetFile, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published[0].status = 503
    monkeypatch.setattr(mnist_download, "find_uv", lambda: None)
    with pytest.raises(RunnerError) as caught:
        resolve_dataset("mnist", None, tmp_path / "home", ignore_progress)
    assert caught.value.code == "R-DATA-MISSING"
    assert "--data" in caught.value.fix
    assert published[0].url in caught.value.why
    assert not list((tmp_path / "home").rglob(".new-*"))


def test_folder_of_the_user_is_checked_and_described(tmp_path: Path) -> None:
    folder = _small_mnist(tmp_path / "mine")
    found = resolve_dataset("mnist", folder, tmp_path / "home", ignore_progress)
    assert (found.name, found.source) == ("mnist-custom", "path")
    assert "6 training and 2 test images" in (found.notice or "")
    assert {file.name: file.sha256 for file in found.files} == {
        path.name: _sha256(path.read_bytes()) for path in folder.iterdir()
    }
    assert not (tmp_path / "home").exists()


def test_complete_mnist_is_recognised_however_it_is_packed(mnist_folder: Path) -> None:
    found = resolve_dataset("mnist", mnist_folder, Path("/nowhere"), ignore_progress)
    assert (found.name, found.notice) == ("mnist", None)


@pytest.fixture
def mnist_folder() -> Path:
    folder = Path(__file__).parents[5] / "shared" / "data" / "mnist"
    if not folder.is_dir():
        pytest.skip("no MNIST beside the checkout")
    return folder


def _spoil(folder: Path, how: str) -> None:
    images = folder / "train-images-idx3-ubyte.gz"
    labels = folder / "train-labels-idx1-ubyte.gz"
    if how == "missing":
        images.unlink()
    elif how == "not gzip":
        images.write_bytes(b"hello")
    elif how == "truncated":
        images.write_bytes(images.read_bytes()[:-12])
    elif how == "short":
        write_idx(images, IMAGES, (6, 28, 28), [bytes(784)])
    elif how == "magic":
        write_idx(images, LABELS, (6,), [bytes(6)])
    elif how == "shape":
        write_idx(images, IMAGES, (6, 8, 8), [bytes(64)] * 6)
    elif how == "counts":
        write_idx(labels, LABELS, (5,), [bytes(5)])
    elif how == "label":
        write_idx(labels, LABELS, (6,), [bytes([1, 2, 3, 4, 5, 10])])
    else:
        write_idx(images, IMAGES, (0, 28, 28), [])
        write_idx(labels, LABELS, (0,), [])


@pytest.mark.parametrize(
    "how",
    ["missing", "not gzip", "truncated", "short", "magic", "shape", "counts", "label", "empty"],
)
def test_folder_that_is_no_mnist_is_refused(tmp_path: Path, how: str) -> None:
    folder = _small_mnist(tmp_path / "mine")
    _spoil(folder, how)
    with pytest.raises(RunnerError) as caught:
        resolve_dataset("mnist", folder, tmp_path / "home", ignore_progress)
    assert caught.value.code in {"R-DATA-FORMAT", "R-DATA-PATH"}
    assert "--data" in caught.value.fix
    assert caught.value.exit_code == 3


def test_idx_files_depend_on_their_contents_only(tmp_path: Path) -> None:
    _small_mnist(tmp_path / "a")
    _small_mnist(tmp_path / "b")
    written = list((tmp_path / "a").iterdir())
    assert len(written) == 4
    for path in written:
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_digits_are_split_six_to_one_and_enlarged(tmp_path: Path) -> None:
    some = [([16] * 64, n % 10) for n in range(12)]
    mnist_download.write_digits(some, tmp_path)
    assert read_idx(tmp_path / "train-images-idx3-ubyte.gz", IMAGES).shape == (10, 28, 28)
    assert read_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", LABELS).shape == (2,)
    image = mnist_download.enlarged([16] * 64)
    assert len(image) == 784
    assert image[14 * 28 + 14] == 255
    assert set(image[: 4 * 28]) == {0}
    assert {image[row * 28 + column] for row in range(28) for column in (0, 3, 24, 27)} == {0}


def test_enlarging_is_smooth_and_keeps_the_order() -> None:
    image = mnist_download.enlarged(list(range(0, 16, 2)) * 8)
    middle = image[14 * 28 + 4 : 14 * 28 + 24]
    assert list(middle) == sorted(middle)
    assert len(set(middle)) > 8


def test_any_folder_is_a_data_set_when_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "d" / "sub" / "b.csv").write_text("1")
    (tmp_path / "d" / "a.csv").write_text("22")
    (tmp_path / "d" / ".hidden").write_text("x")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "d" / "link").symlink_to(tmp_path / "secret")
    found = resolve_dataset("cars", tmp_path / "d", tmp_path, ignore_progress)
    assert [(file.name, file.size_bytes) for file in found.files] == [
        ("a.csv", 2),
        ("sub/b.csv", 1),
    ]
    single = resolve_dataset("cars", tmp_path / "d" / "a.csv", tmp_path, ignore_progress)
    assert [file.name for file in single.files] == ["a.csv"]


def test_unknown_data_set_asks_for_a_path(tmp_path: Path) -> None:
    for given in (None, tmp_path / "nowhere", tmp_path):
        with pytest.raises(RunnerError) as caught:
            resolve_dataset("cars", given, tmp_path, ignore_progress)
        assert "--data" in caught.value.fix


@pytest.mark.parametrize("name", [b"bad\xff", b"new\nline", b"back\\slash"])
def test_file_whose_name_cannot_be_stored_is_refused(tmp_path: Path, name: bytes) -> None:
    file = tmp_path / os.fsdecode(name)
    file.write_text("x")
    for given in (tmp_path, file):
        with pytest.raises(RunnerError) as caught:
            resolve_dataset("any", given, tmp_path, ignore_progress)
        assert caught.value.code == "R-DATA-PATH"
        str(caught.value).encode()
