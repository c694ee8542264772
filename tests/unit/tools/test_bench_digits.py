"""The digits that benchmarks train on."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bench.training.digits import find_digits, title
from runner.recipes.mnist import idx


def write_digits(folder: Path) -> Path:
    """Write two digits a split."""
    folder.mkdir(parents=True)
    for images, labels in idx.NAMES.values():
        header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28))
        (folder / f"{images}.gz").write_bytes(gzip.compress(header + bytes(2 * 784)))
        (folder / f"{labels}.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x02\0\x01"))
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("BENCH_MNIST", raising=False)


def test_given_folder_is_used_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_digits(tmp_path / "mine")
    monkeypatch.setenv("BENCH_MNIST", str(folder))
    found = find_digits(tmp_path / "home")
    assert found.folder == folder
    assert title(found) == "mnist-custom in mine"
    assert f"data: mnist-custom in mine in {folder}" in capsys.readouterr().err


@pytest.mark.parametrize("given", [None, ""])  # make passes an empty value where it found nothing
def test_without_mnist_the_digits_of_scikit_learn_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    if given is not None:
        monkeypatch.setenv("BENCH_MNIST", given)
    folder = write_digits(tmp_path / "data/mnist/sklearn-digits")  # downloaded before
    found = find_digits(tmp_path)
    assert (found.folder, title(found)) == (folder, "digits of scikit-learn")
