from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from runner.node.failures import StageFailedError, TerminatedError
from runner.node.script.outputs import check_promised, export_outputs
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError, StorageResponse
from runner.protocol.results import OutputFile
from tests.unit.node.fake_blob import FakeBlobs


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "output"
    (folder / "plots").mkdir(parents=True)
    (folder / "model.keras").write_bytes(b"model")
    (folder / "plots" / "loss.png").write_bytes(b"png")
    return folder


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_every_file_is_uploaded_with_its_hash(
    output: Path, container: ContainerClient, service: FakeBlobs
) -> None:
    (output / "empty.txt").touch()
    exported = export_outputs(container, "r/output/", output, lambda *_: None, lambda: None)
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
    exported = export_outputs(container, "r/output/", output, lambda *_: None, lambda: None)
    assert [e.path for e in exported] == ["best.keras", "model.keras", "plots/loss.png"]
    assert service.data("r/output/best.keras") == b"model"
    assert {"broken", "more"} <= {r.getMessage().split()[2].split("/")[-1] for r in caplog.records}


@pytest.mark.parametrize(
    "promised",
    ["model.keras", "*.keras", "plots", "plots/**", "plots/*.png", "**/*.png", "./plots"],
)
def test_written_promised_output_passes(output: Path, promised: str) -> None:
    before = sorted(output.rglob("*"))
    check_promised(output, [promised])
    with pytest.raises(StageFailedError) as caught:
        check_promised(output, [promised, "broken.promise"])
    assert "did not write broken.promise to its folder" in str(caught.value)
    assert sorted(output.rglob("*")) == before


@pytest.mark.parametrize(
    "promised",
    ["model.onnx", "plots/*.pdf", "empty", "/etc/passwd", "../output/model.keras", "**x"],
)
def test_missing_promised_output_is_named(output: Path, promised: str) -> None:
    (output / "empty").mkdir()
    with pytest.raises(StageFailedError) as caught:
        check_promised(output, ["model.keras", promised])
    assert (caught.value.step, caught.value.code) == ("export", "OutputMissing")
    assert promised in caught.value.message
    assert "it wrote empty, model.keras, plots" in caught.value.message


def test_refused_upload_is_an_error(
    output: Path, container: ContainerClient, service: FakeBlobs
) -> None:
    service.refuse_for_good()
    with pytest.raises(StorageRequestError, match="the account's key was changed"):
        export_outputs(container, "r/output/", output, lambda *_: None, lambda: None)


def test_termination_stops_an_export(output: Path, container: ContainerClient) -> None:
    def check() -> None:
        raise TerminatedError

    with pytest.raises(TerminatedError):
        export_outputs(container, "r/output/", output, lambda *_: None, check)


def test_hash_is_of_the_bytes_sent_while_the_file_grows(
    output: Path, container: ContainerClient, service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = container.transport.send

    def grow_and_send(method: str, name: str, **options: Any) -> StorageResponse:
        with (output / "model.keras").open("ab") as out:
            out.write(b"more")
        return send(method, name, **options)

    monkeypatch.setattr(container.transport, "send", grow_and_send)
    for file in export_outputs(container, "r/output/", output, lambda *_: None, lambda: None):
        data = service.data(f"r/output/{file.path}")
        assert (file.size_bytes, file.sha256) == (len(data), sha256(data))


def test_small_files_are_uploaded_in_parallel(
    tmp_path: Path, container: ContainerClient, service: FakeBlobs
) -> None:
    for number in range(300):
        (tmp_path / f"{number}.txt").write_text(str(number))
    reports: list[tuple[Any, ...]] = []
    report = lambda *words: reports.append(words)  # noqa: E731
    exported = export_outputs(container, "r/output/", tmp_path, report, lambda: None)
    assert len(exported) == 300
    assert reports[-1][1] == reports[-1][2]
    assert 2 <= service.connections <= 8


def test_missing_output_folder_has_no_outputs(tmp_path: Path, container: ContainerClient) -> None:
    gone = tmp_path / "gone"
    assert export_outputs(container, "r/output/", gone, lambda *_: None, lambda: None) == []
