from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from runner.node.failures import StageFailedError, TerminatedError
from runner.node.script.outputs import (
    read_list,
    write_list,
)
from runner.node.script.written import Collected
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError, StorageResponse
from runner.protocol.paths import RunPaths
from runner.protocol.results import OutputFile
from tests.unit.node.attempt_parts import outputs_of
from tests.unit.node.fake_blob import FakeBlobs


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "output"
    (folder / "plots").mkdir(parents=True)
    (folder / "model.keras").write_bytes(b"model")
    (folder / "plots" / "loss.png").write_bytes(b"png")
    return folder


def silent(*_: object) -> None:
    """Report no progress."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_every_file_is_uploaded_with_its_hash(
    output: Path, container: ContainerClient, service: FakeBlobs
) -> None:
    (output / "empty.txt").touch()
    exported = outputs_of(container, output).export("r/output/", silent)
    assert exported == [
        OutputFile("empty.txt", 0, sha256(b"")),
        OutputFile("model.keras", 5, sha256(b"model")),
        OutputFile("plots/loss.png", 3, sha256(b"png")),
    ]
    assert service.data("r/output/plots/loss.png") == b"png"


def test_link_to_a_file_is_exported_as_file(
    output: Path, container: ContainerClient, service: FakeBlobs, caplog: pytest.LogCaptureFixture
) -> None:
    (output / "best.keras").symlink_to("model.keras")
    (output / "broken").symlink_to("nowhere")
    (output / "more").symlink_to("plots")
    exported = outputs_of(container, output).export("r/output/", silent)
    assert [e.path for e in exported] == ["best.keras", "model.keras", "plots/loss.png"]
    assert service.data("r/output/best.keras") == b"model"
    assert {"broken", "more"} <= {r.getMessage().split()[2].split("/")[-1] for r in caplog.records}


@pytest.mark.parametrize(
    "promised",
    ["model.keras", "*.keras", "plots", "plots/**", "plots/*.png", "**/*.png", "./plots"],
)
def test_written_promised_output_passes(output: Path, promised: str) -> None:
    before = sorted(output.rglob("*"))
    outputs_of(None, output).check_promised([promised])
    with pytest.raises(StageFailedError) as caught:
        outputs_of(None, output).check_promised([promised, "broken.promise"])
    assert "did not write broken.promise to its folder" in str(caught.value)
    assert sorted(output.rglob("*")) == before


@pytest.mark.parametrize(
    "promised",
    ["model.onnx", "plots/*.pdf", "empty", "/etc/passwd", "../output/model.keras", "**x"],
)
def test_missing_promised_output_is_named(output: Path, promised: str) -> None:
    (output / "empty").mkdir()
    with pytest.raises(StageFailedError) as caught:
        outputs_of(None, output).check_promised(["model.keras", promised])
    assert (caught.value.step, caught.value.code) == ("export", "OutputMissing")
    assert promised in caught.value.message
    assert "it wrote model.keras, plots" in caught.value.message


def test_refused_upload_is_an_error(
    output: Path, container: ContainerClient, service: FakeBlobs
) -> None:
    service.refuse_for_good()
    with pytest.raises(StorageRequestError, match="the account key has changed"):
        outputs_of(container, output).export("r/output/", silent)


def test_termination_stops_an_export(output: Path, container: ContainerClient) -> None:
    def check() -> None:
        raise TerminatedError

    with pytest.raises(TerminatedError):
        outputs_of(container, output, check=check).export("r/output/", silent)


def test_hash_is_of_the_bytes_sent_while_the_file_grows(
    output: Path, container: ContainerClient, service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = container.transport.send

    def grow_and_send(method: str, name: str, **options: Any) -> StorageResponse:
        with (output / "model.keras").open("ab") as out:
            out.write(b"more")
        return send(method, name, **options)

    monkeypatch.setattr(container.transport, "send", grow_and_send)
    for file in outputs_of(container, output).export("r/output/", silent):
        data = service.data(f"r/output/{file.path}")
        assert (file.size_bytes, file.sha256) == (len(data), sha256(data))


def test_small_files_are_uploaded_in_parallel(
    tmp_path: Path, container: ContainerClient, service: FakeBlobs
) -> None:
    for number in range(300):
        (tmp_path / f"{number}.txt").write_text(str(number))
    reports: list[tuple[Any, ...]] = []
    report = lambda *words: reports.append(words)  # noqa: E731
    exported = outputs_of(container, tmp_path).export("r/output/", report)
    assert len(exported) == 300
    assert reports[-1][1] == reports[-1][2]
    assert 2 <= service.connections <= 8


def test_missing_output_folder_has_no_outputs(tmp_path: Path, container: ContainerClient) -> None:
    gone = tmp_path / "gone"
    assert outputs_of(container, gone).export("r/output/", silent) == []


def beside(folder: Path, *names: str) -> Collected:
    """Return these files as written beside the script."""
    return Collected({name: str(folder / name) for name in names}, dict.fromkeys(names, "code"))


def test_promised_output_must_be_among_the_kept_files(tmp_path: Path) -> None:
    with pytest.raises(StageFailedError):
        outputs_of(None, tmp_path).check_promised(["m.h5"])


@pytest.mark.parametrize(
    ("promised", "is_kept"),
    [("sub/m.h5", True), ("sub", True), ("**/*.h5", True), ("*.h5", False), ("home/x", True)],
)
def test_promise_is_a_path_in_the_folder_of_the_script(
    tmp_path: Path, promised: str, is_kept: bool
) -> None:
    names = ("sub/m.h5", "home/x")
    collected = Collected(dict.fromkeys(names, ""), {"sub/m.h5": "code", "home/x": "home"})
    outputs = outputs_of(None, tmp_path, collected)
    if is_kept:
        outputs.check_promised([promised])
    else:
        with pytest.raises(StageFailedError):
            outputs.check_promised([promised])


@pytest.mark.parametrize("fault", ["refused", "gone"])
def test_unpromised_file_is_omitted_if_it_cannot_be_stored(
    tmp_path: Path, container: ContainerClient, service: FakeBlobs, fault: str
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    if fault == "gone":
        (tmp_path / "a.txt").unlink()
    else:
        service.refuse_put = "r/output/a.txt"
    collected = beside(tmp_path, "a.txt", "b.txt")
    outputs = outputs_of(container, tmp_path / "none", collected)
    assert [file.path for file in outputs.export("r/output/", silent, ["b.txt"])] == ["b.txt"]
    assert [(each.path, each.why) for each in outputs.left_out] == [("a.txt", "transfer")]
    with pytest.raises((StageFailedError, StorageRequestError)):
        outputs.export("r/output/", silent, ["*.txt"])
    lost = [OutputFile("a.txt", 1, "", "code")]
    service.put("r/output/b.txt", b"x")
    assert not outputs.restore(lost)
    assert len(outputs.left_out) == 2


def test_outputs_are_listed_while_they_are_uploaded(
    output: Path, container: ContainerClient, service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.node.script.outputs.SAVE_EVERY_S", 0.0)
    (tmp := output / "big.bin").write_bytes(b"x" * 100)
    service.hold_put = "r/output/big.bin"
    saved: list[list[str]] = []
    outputs = outputs_of(container, output)

    def write(_: object, name: str, files: list[OutputFile], folder: str) -> None:
        assert (name, folder) == (RunPaths("r").attempt_outputs(1), "")
        saved.append([file.path for file in files])

    monkeypatch.setattr("runner.node.script.outputs.write_list", write)
    exported = outputs.export_partial(lambda: 0.0 if saved else None, last=False)
    service.hold_put = ""
    assert set(saved[0]) <= {"model.keras", "plots/loss.png"}, "before the large file is there"
    assert [file.path for file in exported] == saved[-1]
    [left_out] = outputs.left_out
    assert left_out.why == "time"
    assert left_out.size_bytes >= tmp.stat().st_size


def test_files_of_an_earlier_attempt_are_partial_and_never_fail_a_run(
    tmp_path: Path, container: ContainerClient, service: FakeBlobs
) -> None:
    blobs = RunPaths("r")
    listed = [OutputFile(name, 1, "") for name in ("a", "b", "gone", "own")]
    write_list(container, blobs.attempt_outputs(1), listed)
    for name in ("a", "b"):
        service.put(blobs.output(1) + name, b"x")
    service.refuse_put = blobs.output(2) + "b"
    own = OutputFile("own", 2, "")
    checks: list[None] = []
    check = lambda: checks.append(None)  # noqa: E731
    outputs = outputs_of(container, tmp_path, check=check, number=2)
    assert outputs.add_earlier([own]) == [OutputFile("a", 1, "", attempt=1, partial=True), own]
    assert {each.path for each in outputs.left_out} == {"b", "gone"}
    assert len(checks) == 3

    def terminate() -> None:
        raise TerminatedError

    with pytest.raises(TerminatedError):
        outputs.add_earlier([own], terminate)
    service.refuse_for_good()
    assert outputs.add_earlier([own]) == [own]


def test_list_of_outputs_keeps_what_the_client_reads(container: ContainerClient) -> None:
    files = (OutputFile("a", 1, "x", "code", 1, partial=True), OutputFile("b", 1, "x"))
    write_list(container, "r/list", files)
    assert read_list(container, "r/list") == files
    assert "partial" not in files[1].to_json()
