"""Data sets of recipes: paths, downloaders in processes of their own, and the cache."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from runner.core.progress import Progress, ignore_progress
from runner.core.recipe.code_archive import pack_code
from runner.core.recipe.file import load_recipe
from runner.flows.data.datasets import Dataset, cached_dataset, resolve_dataset
from runner.protocol.errors import RunnerError

PROLOGUE = (
    "import json, pathlib, sys\nverb, folder = sys.argv[1], pathlib.Path(sys.argv[2])\n"
    "with open({runs!r}, 'a') as runs: runs.write(verb + '\\n')\n"
)


class Downloader:
    """A recipe's folder with a `download.py`; `runs` are the verbs that it was run with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "recipe"
        self.folder.mkdir()
        self.home = folder / "home"
        self._runs = folder / "runs"
        self.progress: list[Progress] = []

    def write(self, text: str) -> None:
        (self.folder / "download.py").write_text(PROLOGUE.format(runs=str(self._runs)) + text)

    @property
    def runs(self) -> list[str]:
        return self._runs.read_text().split() if self._runs.exists() else []

    def resolve(self, given: Path | None = None) -> Dataset:
        return resolve_dataset("cars", given, self.home, self.progress.append, self.folder)

    def error(self, given: Path | None = None) -> RunnerError:
        with pytest.raises(RunnerError) as caught:
            self.resolve(given)
        return caught.value


@pytest.fixture
def downloader(tmp_path: Path) -> Downloader:
    found = Downloader(tmp_path)
    found.write("(folder / 'a.csv').write_text('22')\n")
    return found


def test_downloaded_data_set_is_cached(downloader: Downloader) -> None:
    assert cached_dataset("cars", downloader.home, downloader.folder) is None
    first = downloader.resolve()
    assert (first.name, first.source, first.notice) == ("cars", "mirror", None)
    assert [(file.name, file.size_bytes) for file in first.files] == [("a.csv", 2)]
    assert first.files[0].sha256 == hashlib.sha256(b"22").hexdigest()
    second = downloader.resolve()
    assert (second.source, second.files) == ("cache", first.files)
    assert cached_dataset("cars", downloader.home, downloader.folder) == second
    assert downloader.runs == ["fetch"]


def test_only_a_download_gets_uv(downloader: Downloader, tmp_path: Path) -> None:
    downloader.write(
        "import os\nif verb == 'fetch': (folder / 'a.csv').write_text('22')\n"
        "print(json.dumps({'name': f\"{verb} {'RUNNER_UV' in os.environ}\"}))\n"
    )
    found = downloader.resolve()
    assert found.name == "fetch True"
    assert downloader.resolve(found.folder).name == "check False"


def test_progress_ends_at_the_size_of_the_data_set(downloader: Downloader) -> None:
    downloader.write(
        "(folder / 'a.csv').write_text('22')\nprint('no JSON')\n"
        "print(json.dumps({'text': 'half', 'done': 1, 'total': 2}))\n"
    )
    downloader.resolve()
    steps = [(step.state, step.message, step.done, step.total) for step in downloader.progress]
    script = downloader.folder / "download.py"
    assert steps == [
        ("start", f"downloading cars: running {script} on this machine", None, None),
        ("progress", "half", 1, 2),
        ("end", "cars", 2, 2),
    ]


@pytest.mark.parametrize("damage", ["content", "missing", "manifest"])
def test_damaged_cache_is_downloaded_again(downloader: Downloader, damage: str) -> None:
    folder = downloader.resolve().folder
    if damage == "content":
        (folder / "a.csv").write_text("33")
    elif damage == "missing":
        (folder / "a.csv").unlink()
    else:
        (folder / ".manifest.json").write_text("{")
    assert downloader.resolve().source == "mirror"
    assert (folder / "a.csv").read_text() == "22"
    assert downloader.runs == ["fetch", "fetch"]


def test_fallback_is_not_cached(downloader: Downloader) -> None:
    downloader.write(
        "(folder / 'other').mkdir(exist_ok=True)\n(folder / 'other/b').write_text('1')\n"
        "print(json.dumps({'source': 'fallback', 'name': 'bikes', 'notice': 'no cars',"
        " 'folder': 'other'}))\n"
    )
    for _ in range(2):
        found = downloader.resolve()
        assert (found.name, found.source, found.notice) == ("bikes", "fallback", "no cars")
        assert [file.name for file in found.files] == ["b"]
    assert downloader.runs == ["fetch", "fetch"]


def test_recipes_with_equal_data_names_have_separate_caches(tmp_path: Path) -> None:
    folders: set[Path] = set()
    for name in "ab":
        (tmp_path / name).mkdir()
        one = Downloader(tmp_path / name)
        one.home = tmp_path / "home"
        one.write(f"(folder / 'x').write_text({name!r})\n")
        folders.add(one.resolve().folder)
    assert len(folders) == 2


def test_given_folder_is_checked_by_the_downloader(downloader: Downloader, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in "ab":
        (tmp_path / "mine" / name).write_text(name)
    downloader.write("print(json.dumps({'name': 'my-cars', 'notice': 'small', 'files': ['a']}))\n")
    found = downloader.resolve(tmp_path / "mine")
    assert (found.name, found.source, found.notice) == ("my-cars", "path", "small")
    assert [file.name for file in found.files] == ["a"]
    assert downloader.runs == ["check"]
    assert not downloader.home.exists()


def test_error_of_the_downloader_is_raised(downloader: Downloader) -> None:
    error = {"code": "R-CARS", "what": "no cars", "why": "no fuel", "fix": "walk"}
    downloader.write(f"print(json.dumps({error!r}))\nsys.exit(1)\n")
    err = downloader.error()
    assert (err.code, err.what, err.why, err.fix) == ("R-CARS", "no cars", "no fuel", "walk")
    assert err.exit_code == 3
    assert downloader.progress[-1].state == "failed"


@pytest.mark.parametrize(
    ("text", "why"),
    [("raise ValueError('no fuel')\n", "ValueError: no fuel"), ("sys.exit(2)\n", "no error")],
)
def test_crash_of_the_downloader_shows_its_last_line(
    downloader: Downloader, text: str, why: str
) -> None:
    downloader.write(text)
    err = downloader.error()
    assert err.code == "R-DATA-DOWNLOAD"
    assert "download.py failed with exit code" in err.what
    assert why in err.why


@pytest.mark.parametrize("reply", [{"files": ["../secret"]}, {"files": ["no-such"]}, {}])
def test_result_without_readable_files_is_rejected(
    downloader: Downloader, tmp_path: Path, reply: dict[str, Any]
) -> None:
    (tmp_path / "home" / "data" / "secret").mkdir(parents=True)
    downloader.write(f"print(json.dumps({reply!r}))\n")
    assert downloader.error().code.startswith("R-DATA-")


def test_mnist_has_a_downloader_outside_its_code(tmp_path: Path) -> None:
    recipe = load_recipe("mnist", cwd=tmp_path)
    assert cached_dataset("mnist", tmp_path) is None
    assert cached_dataset("mnist", tmp_path, recipe.folder) is None
    assert (recipe.folder / "download.py").is_file()
    assert pack_code(recipe).files == 7


def test_given_folder_is_used_as_the_data_set(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", [b"bad\xff", b"new\nline", b"back\\slash", b"a:b"])
def test_file_name_invalid_for_a_blob_is_part_of_a_data_set(tmp_path: Path, name: bytes) -> None:
    file = tmp_path / os.fsdecode(name)
    file.write_text("x")
    for given in (tmp_path, file):
        found = resolve_dataset("any", given, tmp_path, ignore_progress)
        assert [each.name for each in found.files] == [os.fsdecode(name)]
