from __future__ import annotations

import gzip
import hashlib
import io
import resource
import tarfile
from pathlib import Path

import pytest

from runner.node.failures import StageFailedError
from runner.node.script import workspace
from runner.node.script.workspace import unpack_code


def member(name: str, data: bytes = b"", **attributes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, data


def archive(tmp_path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> tuple[Path, str]:
    path = tmp_path / "code.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_folders_and_inner_links_are_unpacked(tmp_path: Path) -> None:
    path, sha256 = archive(
        tmp_path,
        member(".", type=tarfile.DIRTYPE),
        member("pkg", type=tarfile.DIRTYPE),
        member("pkg/train.py", b"print(1)", mode=0o644),
        member("run.sh", b"#!/bin/sh", mode=0o4755),
        member("pkg/link.py", type=tarfile.SYMTYPE, linkname="../pkg/train.py"),
        member("hard.py", type=tarfile.LNKTYPE, linkname="pkg/train.py"),
    )
    target = tmp_path / "code"
    unpack_code(path, target, sha256)
    assert (target / "pkg/link.py").read_text() == "print(1)"
    assert (target / "hard.py").read_text() == "print(1)"
    assert (target / "run.sh").stat().st_mode & 0o7777 == 0o755


def test_second_unpacking_replaces_the_first(tmp_path: Path) -> None:
    target = tmp_path / "code"
    target.mkdir()
    (target / "old.py").touch()
    path, sha256 = archive(tmp_path, member("new.py"))
    unpack_code(path, target, sha256)
    assert [p.name for p in target.iterdir()] == ["new.py"]


@pytest.mark.parametrize(
    "bad",
    [
        member("/etc/cron.d/x", b"x"),
        member("../x", b"x"),
        member("a/../../x", b"x"),
        member("l", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("l", type=tarfile.SYMTYPE, linkname="../secret"),
        member("d/l", type=tarfile.SYMTYPE, linkname="../../secret"),
        member("l", type=tarfile.LNKTYPE, linkname="../secret"),
        member("pipe", type=tarfile.FIFOTYPE),
        member("dev", type=tarfile.CHRTYPE),
    ],
    ids=lambda m: f"{m[0].name}->{m[0].linkname or m[0].type.decode()}",
)
def test_archive_with_outside_paths_writes_nothing(
    tmp_path: Path, bad: tuple[tarfile.TarInfo, bytes]
) -> None:
    path, sha256 = archive(tmp_path, member("good.py", b"x"), bad)
    with pytest.raises(StageFailedError) as caught:
        unpack_code(path, tmp_path / "code", sha256)
    assert (caught.value.step, caught.value.code) == ("code", "CodeInvalid")
    assert list((tmp_path / "code").iterdir()) == []


def test_nothing_is_written_through_a_chain_of_links(tmp_path: Path) -> None:
    """`a -> b/..` with `b -> deep/er`: each link alone looks harmless."""
    path, sha256 = archive(
        tmp_path,
        member("one/two", type=tarfile.DIRTYPE),
        member("here", type=tarfile.SYMTYPE, linkname="."),
        member("one/two/up", type=tarfile.SYMTYPE, linkname="../../here/one/.."),
        member("c", type=tarfile.SYMTYPE, linkname="one/two/up/.."),
        member("c/escaped.py", b"x"),
    )
    with pytest.raises(StageFailedError):
        unpack_code(path, tmp_path / "code", sha256)
    assert not (tmp_path / "escaped.py").exists()


def test_changed_archive_is_rejected(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, member("train.py"))
    with pytest.raises(StageFailedError, match="differs from the submitted"):
        unpack_code(path, tmp_path / "code", "0" * 64)


@pytest.mark.attack
def test_archive_that_is_replaced_after_the_check_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of an earlier attempt may write to the folder of the task at any time."""
    path, sha256 = archive(tmp_path, member("train.py", b"good"))
    (tmp_path / "other").mkdir()
    other, _ = archive(tmp_path / "other", member("train.py", b"evil"))
    read = Path.read_bytes

    def read_and_replace(read_path: Path) -> bytes:
        content = read(read_path)
        other.replace(path)
        return content

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read_and_replace)
        unpack_code(path, tmp_path / "code", sha256)
    assert (tmp_path / "code/train.py").read_bytes() == b"good"
    with pytest.raises(StageFailedError, match="differs from the submitted"):
        unpack_code(path, tmp_path / "code", sha256)  # of a retry on the same node
    assert (tmp_path / "code/train.py").read_bytes() == b"good"


def test_truncated_archive_is_rejected(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, member("train.py", b"x" * 5000))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(StageFailedError, match="not a complete"):
        unpack_code(path, tmp_path / "code", hashlib.sha256(path.read_bytes()).hexdigest())


def test_missing_archive_names_the_resource_file(tmp_path: Path) -> None:
    with pytest.raises(StageFailedError, match="resource file"):
        unpack_code(tmp_path / "code.tar.gz", tmp_path / "code", "")


def packed(tmp_path: Path, *parts: tuple[bytes, int]) -> tuple[Path, str]:
    """Write a gzip file in which each part is repeated so often."""
    path = tmp_path / "code.tar.gz"
    path.write_bytes(b"".join(gzip.compress(part) * times for part, times in parts))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def header(name: str, size: int, **attributes: object) -> bytes:
    info, _ = member(name, b"", **attributes)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


ZEROS = bytes(1 << 20)


@pytest.mark.attack
def test_bomb_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """600 MB in 600 kB, as one file or as many."""
    size = 600 << 20
    path, sha256 = packed(tmp_path, (header("zeros", size), 1), (ZEROS, 600))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(StageFailedError, match="more than 500 MB"):
        unpack_code(path, tmp_path / "code", sha256)
    one = header("zeros", 1 << 20) + ZEROS
    path, sha256 = packed(tmp_path, (one, 600))
    with pytest.raises(StageFailedError, match="more than 500 MB"):
        unpack_code(path, tmp_path / "code", sha256)
    assert list((tmp_path / "code").iterdir()) == []


@pytest.mark.attack
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_long_header_does_not_fill_the_memory(tmp_path: Path, kind: bytes) -> None:
    path, sha256 = packed(tmp_path, (header("x", 400 << 20, type=kind), 1), (ZEROS, 400))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StageFailedError, match="too long"):
        unpack_code(path, tmp_path / "code", sha256)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 100 << 10


@pytest.mark.attack
def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MAX_CODE_FILES", 3)
    allowed, sha256 = archive(tmp_path, *(member(str(number)) for number in range(3)))
    unpack_code(allowed, tmp_path / "code", sha256)
    path, sha256 = archive(tmp_path, *(member(str(number)) for number in range(4)))
    with pytest.raises(StageFailedError, match="more than 3 files"):
        unpack_code(path, tmp_path / "code", sha256)


@pytest.mark.attack
@pytest.mark.parametrize(
    "bad",
    [
        member("d/" * 3000 + "x"),
        member("l", type=tarfile.SYMTYPE, linkname="d/" * 3000 + "x"),
        member("x", type=tarfile.GNUTYPE_SPARSE),
        member("x", type=tarfile.BLKTYPE),
        member("x", type=b"Z"),
        member("a", b"", pax_headers={"path": "../x"}),
        member("l", type=tarfile.SYMTYPE, pax_headers={"linkpath": "/etc/passwd"}),
    ],
)
def test_member_that_packing_never_writes_is_refused(
    tmp_path: Path, bad: tuple[tarfile.TarInfo, bytes]
) -> None:
    path, sha256 = archive(tmp_path, member("train.py", b"x"), bad)
    with pytest.raises(StageFailedError):
        unpack_code(path, tmp_path / "code", sha256)
    assert list((tmp_path / "code").iterdir()) == []
    assert {each.name for each in tmp_path.iterdir()} == {"code.tar.gz", "code"}


@pytest.mark.attack
def test_negative_size_leads_not_back_in_the_archive(tmp_path: Path) -> None:
    bad = member("a", b"", pax_headers={"size": "-1024"})
    path, sha256 = archive(tmp_path, member("train.py", b"x"), bad)
    try:
        unpack_code(path, tmp_path / "code", sha256)
    except StageFailedError:
        assert list((tmp_path / "code").iterdir()) == []
    else:  # to Python 3.14, the archive ends there
        assert (tmp_path / "code" / "train.py").read_bytes() == b"x"


def test_project_at_the_limits_of_packing_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "MAX_CODE_BYTES", 5000)
    monkeypatch.setattr(workspace, "MAX_CODE_FILES", 2)
    path, sha256 = archive(tmp_path, member("a", b"x" * 2500), member("b" * 200, b"y" * 2500))
    unpack_code(path, tmp_path / "code", sha256)
    assert sum(each.stat().st_size for each in (tmp_path / "code").iterdir()) == 5000
