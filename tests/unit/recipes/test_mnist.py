"""The MNIST recipe without Keras: the IDX reader, the command line, what it promises."""

from __future__ import annotations

import gzip
import importlib.util
import re
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import runner
from runner.core.recipe.file import load_recipe
from runner.core.recipe.recipe import Recipe

RECIPES = Path(runner.__file__).parent / "recipes"
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def load_module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(RECIPES / "mnist"))
    spec = importlib.util.spec_from_file_location(name, RECIPES / "mnist" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def idx(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_module("idx", monkeypatch)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe("mnist", cwd=tmp_path)


def idx_bytes(shape: tuple[int, ...], values: bytes, kind: int = 8) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + values


def write_digits(
    folder: Path, count: int = 3, *, split: tuple[str, str] = (IMAGES, LABELS), side: int = 28
) -> None:
    images = idx_bytes((count, side, side), bytes(count * side * side))
    labels = idx_bytes((count,), bytes(n % 10 for n in range(count)))
    (folder / f"{split[0]}.gz").write_bytes(gzip.compress(images))
    (folder / f"{split[1]}.gz").write_bytes(gzip.compress(labels))


def test_images_and_labels_are_read(idx: ModuleType, tmp_path: Path) -> None:
    write_digits(tmp_path)
    digits = idx.load_digits(tmp_path, "train")
    assert digits.count == 3
    assert len(digits.images) == 3 * 28 * 28
    assert list(digits.labels) == [0, 1, 2]


def test_files_need_not_be_compressed(idx: ModuleType, tmp_path: Path) -> None:
    write_digits(tmp_path)
    for packed in tmp_path.glob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    assert idx.load_digits(tmp_path, "train").count == 3


def test_missing_file_is_named(idx: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(idx.DataError, match=f"neither {IMAGES}.gz nor {IMAGES}"):
        idx.load_digits(tmp_path, "train")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "starts with nothing"),
        (b"PK\x03\x04 a zip file", "starts with 504b0304, expected 00000803"),
        (idx_bytes((2,), b"\0\1"), "starts with 00000801"),
        (idx_bytes((1, 28, 28), bytes(784), kind=13), "expected 00000803"),
        (idx_bytes((1, 28, 28), b"")[:10], "incomplete header"),
        (
            idx_bytes((2, 28, 28), bytes(784)),
            "expected 2 x 28 x 28 = 1568 bytes after the header, got 784",
        ),
        (idx_bytes((1, 28, 28), bytes(785)), "got 785"),
        (idx_bytes((3, 8, 8), bytes(192)), "8 x 8 pixels, expected 28 x 28"),
        (idx_bytes((2, 28, 28), bytes(1568)), "has 2 images, .* has 3 labels"),
    ],
)
def test_invalid_images_are_reported(
    idx: ModuleType, tmp_path: Path, content: bytes, problem: str
) -> None:
    write_digits(tmp_path)
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(content))
    with pytest.raises(idx.DataError, match=problem):
        idx.load_digits(tmp_path, "train")


@pytest.mark.parametrize("content", [b"no gzip at all", b"", "half"])
def test_damaged_gzip_is_reported(idx: ModuleType, tmp_path: Path, content: bytes | str) -> None:
    write_digits(tmp_path)
    path = tmp_path / f"{IMAGES}.gz"
    whole = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    with pytest.raises(idx.DataError, match=f"{IMAGES}.gz: (not a whole gzip|starts with nothing)"):
        idx.load_digits(tmp_path, "train")


def test_label_other_than_a_digit_is_reported(idx: ModuleType, tmp_path: Path) -> None:
    write_digits(tmp_path)
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(idx_bytes((3,), b"\0\x0a\1")))
    with pytest.raises(idx.DataError, match="label 10 is not a digit"):
        idx.load_digits(tmp_path, "train")


def test_empty_set_is_reported(idx: ModuleType, tmp_path: Path) -> None:
    write_digits(tmp_path, count=0)
    with pytest.raises(idx.DataError, match="no images"):
        idx.load_digits(tmp_path, "train")


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", str(RECIPES / "mnist/train.py"), *arguments],
        env={},
        capture_output=True,
        text=True,
        check=False,
    )


def test_script_without_data_names_the_argument() -> None:
    done = run_script("--epochs", "1")
    assert done.returncode == 2
    assert "--data is missing" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--batch-size -3", "-3 is less than 1"),  # hung: no epoch ended
        ("--epochs 0", "0 is less than 1"),
        ("--shift -1", "-1 is less than 0"),
        ("--learning_rate nan", "nan is less than 0"),
        ("--seed x", "invalid int value: 'x'"),
    ],
)
def test_invalid_parameter_is_refused_by_name(arguments: str, told: str) -> None:
    done = run_script("--data", "x", *arguments.split())
    assert done.returncode == 2
    assert told in done.stderr
    assert arguments.split(maxsplit=1)[0] in done.stderr


def test_script_with_invalid_data_ends_before_heavy_imports(tmp_path: Path) -> None:
    write_digits(tmp_path)
    (tmp_path / f"{LABELS}.gz").write_bytes(b"x")
    done = run_script("--data", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {LABELS}.gz: not a whole gzip file")


def test_defaults_of_script_and_recipe_agree(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_module("idx", monkeypatch)
    train = load_module("train", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["train.py", "--data", "x"])
    by_hand = vars(train.parse_arguments())
    assert {param.name: param.default for param in recipe.params} == {
        name: value
        for name, value in by_hand.items()
        if name not in ("data", "output", "metrics_file")
    }


def test_every_declared_parameter_reaches_the_script(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_module("idx", monkeypatch)
    train = load_module("train", monkeypatch)
    arguments = [word for param in recipe.params for word in (f"--{param.name}", "1")]
    monkeypatch.setattr(sys, "argv", ["train.py", "--data", "x", *arguments])
    parsed = vars(train.parse_arguments())
    assert {parsed[param.name] for param in recipe.params} == {1}


@pytest.mark.parametrize(
    "path", sorted(RECIPES.glob("*/requirements*.txt")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_requirements_are_pinned_and_name_no_registry(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[a-z0-9.-]+==[0-9.]+( ; .+)?", line), line


def test_gpu_environment_differs_only_by_gpu_packages() -> None:
    cpu, gpu = (
        set((RECIPES / "mnist" / name).read_text().splitlines()[1:])
        for name in ("requirements.txt", "requirements-gpu.txt")
    )
    assert cpu < gpu
    assert all(re.match("nvidia-|jax-cuda12", line) for line in gpu - cpu)


def test_template_is_a_valid_recipe(tmp_path: Path) -> None:
    recipe = load_recipe(str(RECIPES / "template"), cwd=tmp_path)
    assert recipe.command == ("python", "train.py")
    assert recipe.primary_metric in recipe.metric_patterns
    assert set(recipe.outputs) == {"model.json"}
