from __future__ import annotations

import ast
import marshal
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import runner.node
from runner.flows.submit import agent_archive
from runner.flows.submit.agent_archive import build_agent
from tests.pythons import SUPPORTED, find_python

ROOT = Path(runner.node.__file__).parents[1]
SOURCES = sorted([*(ROOT / "node").rglob("*.py"), *(ROOT / "protocol").rglob("*.py")])
HOOKS = sorted((ROOT / "hooks").rglob("*.py"))


def test_equal_sources_give_equal_bytes_later_and_elsewhere(tmp_path: Path) -> None:
    first = build_agent()
    for source in SOURCES:
        os.utime(source, (time.time(), source.stat().st_mtime))
    out = tmp_path / "agent.pyz"
    subprocess.run(
        [sys.executable, "-m", "runner.flows.submit.agent_archive", str(out)], check=True
    )
    assert out.read_bytes() == first


@pytest.mark.attack
@pytest.mark.parametrize(("mode", "is_used"), [(0o700, True), (0o770, False), (0o777, False)])
def test_cached_agent_of_another_user_is_not_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_used: bool
) -> None:
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path))
    first = build_agent()
    [cached] = (tmp_path / "cache" / "agent").iterdir()
    assert cached.parent.stat().st_mode & 0o077 == 0
    cached.write_bytes(b"written by another user")
    cached.parent.chmod(mode)
    assert build_agent() == (cached.read_bytes() if is_used else first)


def test_archive_contains_every_module_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "agent.pyz"
    path.write_bytes(build_agent())
    expected = {f"runner/{s.relative_to(ROOT).as_posix()}" for s in SOURCES + HOOKS}
    expected -= {"runner/node/__main__.py"}
    compiled = {f"{name}c" for name in expected if not name.startswith("runner/hooks/")}
    with zipfile.ZipFile(path) as packed:
        names = expected | compiled | {"__main__.py", "runner/__init__.py"}
        assert set(packed.namelist()) == names


def test_agent_and_hooks_are_written_for_python_3_10() -> None:
    sources = SOURCES + HOOKS
    parsed = [ast.parse(source.read_text(), feature_version=(3, 10)) for source in sources]
    assert len(parsed) == len(SOURCES) + len(HOOKS) > 9


def test_automatic_hooks_are_written_for_python_3_8() -> None:
    automatic = sorted((ROOT / "hooks" / "automatic").glob("*.py"))
    # The hooks of Keras 3 need a newer Python, like Keras 3 itself.
    shared = [ROOT / "hooks" / name for name in ("state.py", "timing.py")]
    for source in [*automatic, *shared]:
        text = source.read_text()
        ast.parse(text, feature_version=(3, 8))
        assert "removeprefix" not in text
        assert "removesuffix" not in text


def test_agent_and_hooks_import_only_modules_of_python_3_10() -> None:
    newer = {"datetime.UTC", "enum.StrEnum", "enum.verify", "contextlib.chdir", "http.HTTPMethod"}
    newer |= {f"typing.{name}" for name in ("Self", "Never", "assert_never", "override")}
    newer |= {"tomllib", "hashlib.file_digest", "itertools.batched", "asyncio.TaskGroup"}
    found: set[str] = set()
    for source in SOURCES + HOOKS:
        tree = ast.parse(source.read_text())
        types_only = {
            node
            for each in ast.walk(tree)
            if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"
            for node in ast.walk(each)
        }
        for node in {*ast.walk(tree)} - types_only:
            if isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found.add(f"{node.value.id}.{node.attr}")
    assert "datetime.timezone" in found
    assert not found & newer


def test_agent_starts_alone_and_names_missing_variables(tmp_path: Path) -> None:
    path = tmp_path / "runner-agent.pyz"
    path.write_bytes(build_agent())
    done = subprocess.run(
        [sys.executable, "-I", str(path)],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "RUNNER_STORAGE is not set" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_agent_starts_on_a_python_with_other_byte_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_archive, "MAGIC_NUMBER", b"\x00\x00\r\n")
    archive = tmp_path / "runner-agent.pyz"
    archive.write_bytes(agent_archive.pack(agent_archive.read_sources()))
    done = subprocess.run(
        [sys.executable, archive], capture_output=True, text=True, env={}, check=False
    )
    assert "RUNNER_STORAGE is not set" in done.stdout


SLICES = """\
def middle(text):
    return text[1:3], text[::2][0:1], text[None:-1:None]

parts = middle("abcdef")
key = type("Keys", (), {"__getitem__": lambda _, key: key})()[1:2, ..., (3, slice(4)), ::"x"]
"""


def test_byte_code_with_constant_slices_is_equal_and_runs() -> None:
    code = compile(SLICES, "slices", "exec")
    packed = agent_archive._marshal(code)
    assert packed == agent_archive._marshal(compile(SLICES, "slices", "exec"))
    assert marshal.loads(packed) == code
    found: dict[str, object] = {}
    exec(marshal.loads(packed), found)
    assert found["parts"] == ("bc", "a", "abcde")
    assert found["key"] == (slice(1, 2), ..., (3, slice(4)), slice(None, None, "x"))


@pytest.mark.slow
def test_byte_code_of_a_future_python_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise ValueError("unmarshallable object")

    monkeypatch.setattr(marshal, "dumps", refuse)
    archive = tmp_path / "runner-agent.pyz"
    archive.write_bytes(agent_archive.pack(agent_archive.read_sources()))
    assert _start(sys.executable, archive) == "RUNNER_STORAGE is not set"


# Prints how many modules of an archive have byte code that this Python would make of their source.
EQUAL = """\
import marshal, sys, zipfile
archive = zipfile.ZipFile(sys.argv[1])
compiled = [each for each in archive.namelist() if each.endswith(".pyc")]
made = [compile(archive.read(each[:-1]), each[:-1], "exec", dont_inherit=True) for each in compiled]
print(sum(marshal.loads(archive.read(n)[16:]) == code for n, code in zip(compiled, made)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("minor", SUPPORTED)
def test_agent_of_each_python_starts_on_every_other(minor: int, tmp_path: Path) -> None:
    maker = find_python(minor)
    if maker is None:
        pytest.skip(f"there is no Python 3.{minor} here, so it is not tried")
    archive = tmp_path / "agent.pyz"
    make = [maker, "-m", "runner.flows.submit.agent_archive", archive]
    for home in ("one", "two"):  # each with an empty cache
        before = archive.read_bytes() if archive.exists() else None
        variables = {"PYTHONPATH": str(ROOT.parent), "RUNNER_HOME": str(tmp_path / home)}
        subprocess.run(make, env=variables, cwd=tmp_path, check=True)
        assert archive.read_bytes() == (before or archive.read_bytes())
    equal = subprocess.run([maker, "-c", EQUAL, archive], capture_output=True, check=True)
    assert int(equal.stdout) == sum(each.name != "__main__.py" for each in SOURCES)
    others = [each for each in map(find_python, (10, *SUPPORTED)) if each is not None]
    for other in others:  # nodes may have Python 3.10
        assert _start(other, archive) == "RUNNER_STORAGE is not set", other


def _start(python: Path | str, archive: Path) -> str:
    """Start the agent without its variables. Return the end of the error that it reports."""
    done = subprocess.run(
        [python, archive], capture_output=True, text=True, env={}, cwd=archive.parent, check=False
    )
    return (
        "RUNNER_STORAGE is not set" if "RUNNER_STORAGE is not set" in done.stdout else done.stderr
    )
