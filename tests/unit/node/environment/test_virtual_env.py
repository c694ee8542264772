from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from runner.node.environment import uv as uv_process
from runner.node.environment.uv import meets
from runner.node.environment.virtual_env import (
    MAX_ENVIRONMENTS,
    EnvironmentBuilder,
    EnvironmentStore,
    Requirements,
)
from runner.node.failures import StageFailedError, TerminatedError
from runner.node.inputs.data_cache import node_lock
from tests.processes import alive
from tests.unit.node.fake_uv import install_fake_uv


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    install_fake_uv(folder)
    return folder


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "requirements.txt").write_text("keras==3.0\n")
    return folder


@pytest.fixture
def reports() -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def builder(shared: Path, reports: list[tuple[Any, ...]]) -> EnvironmentBuilder:
    return EnvironmentBuilder(shared, lambda *words: reports.append(words), lambda: None)


def calls(shared: Path) -> list[str]:
    log = shared / "uv.log"
    return log.read_text().splitlines() if log.exists() else []


def test_environment_is_built_once(
    builder: EnvironmentBuilder, shared: Path, code: Path, reports: list[tuple[Any, ...]]
) -> None:
    first = builder.ensure(code, "requirements.txt", None, "c0de")
    assert first.parent == shared / "runner/envs"
    assert (first / "installed.txt").read_text() == "keras==3.0\n"
    assert [call.split()[0] for call in calls(shared)] == ["venv", "pip"]
    assert "--compile-bytecode" not in calls(shared)[1], "scripts import few of the modules"
    assert ("downloaded keras", 1, 2, "packages") in reports
    assert builder.ensure(code, "requirements.txt", None, "0ther") == first
    assert len(calls(shared)) == 2


def test_packages_are_added_unless_the_requirements_list_them(
    builder: EnvironmentBuilder, shared: Path, code: Path
) -> None:
    plain = builder.ensure(code, "requirements.txt", None, "c0de")
    more = builder.ensure(
        code, "requirements.txt", None, "c0de", packages=("papermill", "ipykernel")
    )
    assert more != plain
    assert "papermill ipykernel -r" in calls(shared)[-1]
    (code / "requirements.txt").write_text("keras==3.0\nPapermill[s3]>=2\nipykernel\n")
    builder.ensure(code, "requirements.txt", None, "c0de", packages=("papermill", "ipykernel"))
    assert "papermill" not in calls(shared)[-1]
    builder.ensure(code, "requirements.txt", None, "c0de", packages=("ipykernel<7", "scikit-learn"))
    assert "ipykernel<7 scikit-learn -r" in calls(shared)[-1], "with a version, it is asked for"
    builder.ensure(code, None, None, "c0de", packages=("papermill",))
    assert calls(shared)[-1].endswith("papermill")


@pytest.mark.slow
def test_constraints_build_another_environment(
    builder: EnvironmentBuilder, shared: Path, code: Path
) -> None:
    plain = builder.ensure(code, "requirements.txt", None, "c0de")
    installed = plain / "lib" / "python3.12" / "site-packages" / "numpy-2.1.dist-info"
    installed.mkdir(parents=True)
    same = builder.ensure(code, "requirements.txt", None, "c0de", constraints=("numpy==2.1",))
    assert same == plain, "nothing to build: it has these versions"
    assert len(calls(shared)) == 2
    older = builder.ensure(code, "requirements.txt", None, "c0de", constraints=("numpy==2.0",))
    assert older != plain
    assert (older / "constraints.txt").read_text() == "numpy==2.0"
    assert "-c" in calls(shared)[-1].split()
    again = builder.ensure(code, "requirements.txt", None, "c0de", constraints=("numpy==2.0",))
    assert (again, len(calls(shared))) == (older, 4)


@pytest.mark.slow
def test_other_requirements_build_another_environment(
    builder: EnvironmentBuilder, code: Path
) -> None:
    first = builder.ensure(code, "requirements.txt", None, "c0de")
    (code / "requirements.txt").write_text("keras==3.1\n")
    assert builder.ensure(code, "requirements.txt", None, "c0de") != first
    assert builder.ensure(code, None, None, "c0de") != first


def test_included_files_are_part_of_the_hash(builder: EnvironmentBuilder, code: Path) -> None:
    (code / "requirements.txt").write_text("-r base.txt\n--constraint=pins.txt\n")
    (code / "base.txt").write_text("keras\n")
    (code / "pins.txt").write_text("keras==3.0\n")
    first = builder.ensure(code, "requirements.txt", None, "c0de")
    (code / "pins.txt").write_text("keras==3.1\n")
    assert builder.ensure(code, "requirements.txt", None, "c0de") != first


def test_environment_with_the_code_installed_depends_on_the_code(
    builder: EnvironmentBuilder, code: Path
) -> None:
    (code / "requirements.txt").write_text("./lib\n")
    first = builder.ensure(code, "requirements.txt", None, "c0de")
    assert builder.ensure(code, "requirements.txt", None, "0ther") != first


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-r ../outside.txt\n", "outside the code"),
        ("-r gone.txt\n", "cannot read the requirements file gone.txt"),
    ],
)
def test_unusable_requirements_are_rejected(code: Path, text: str, problem: str) -> None:
    (code / "requirements.txt").write_text(text)
    with pytest.raises(StageFailedError, match=problem):
        Requirements(code / "requirements.txt", code)


def test_failed_build_shows_the_output_of_uv(
    builder: EnvironmentBuilder, shared: Path, code: Path
) -> None:
    (shared / "runner/bin/uv.fail").write_text("  x No solution found\n  keras is nowhere\n")
    with pytest.raises(StageFailedError, match="keras is nowhere") as caught:
        builder.ensure(code, "requirements.txt", None, "c0de")
    assert (caught.value.step, caught.value.code) == ("environment", "EnvironmentFailed")
    assert "`uv pip install` exited with code 2" in caught.value.message
    assert list((shared / "runner/envs").iterdir()) == []


def test_failed_build_shows_the_first_error_of_uv_once(
    builder: EnvironmentBuilder, shared: Path, code: Path
) -> None:
    (shared / "runner/bin/uv.fail").write_text("Resolving\n  \u00d7 No solution\n  why it is so\n")
    with pytest.raises(StageFailedError) as caught:
        builder.ensure(code, "requirements.txt", None, "c0de")
    first, *rest = caught.value.message.splitlines()
    assert first == "`uv pip install` exited with code 2: \u00d7 No solution"
    assert rest == ["Resolving", "  why it is so"]


def test_full_disk_has_its_own_error_code(
    builder: EnvironmentBuilder, shared: Path, code: Path
) -> None:
    (shared / "runner/bin/uv.fail").write_text("failed: No space left on device (os error 28)")
    with pytest.raises(StageFailedError) as caught:
        builder.ensure(code, "requirements.txt", None, "c0de")
    assert caught.value.code == "DiskFull"


@pytest.mark.parametrize(
    ("cause", "code_of_it"),
    [
        ("error sending request for url (https://x/six/)\n  dns error", "PackagesUnreachable"),
        ("error sending request for url (https://x/six/)\n  tls error", "PackagesUnreachable"),
        ("error decoding response body\n  operation timed out", "PackagesUnreachable"),
        ("HTTP status client error (404 Not Found) for url (https://x/six/)", "EnvironmentFailed"),
        ("HTTP status client error (401 Unauthorized) for url (https://x)", "EnvironmentFailed"),
    ],
)
def test_index_without_an_answer_has_its_own_error_code(
    builder: EnvironmentBuilder, shared: Path, code: Path, cause: str, code_of_it: str
) -> None:
    (shared / "runner/bin/uv.fail").write_text(f"error: Failed to fetch: x\n  caused by: {cause}")
    with pytest.raises(StageFailedError) as caught:
        builder.ensure(code, "requirements.txt", None, "c0de")
    assert caught.value.code == code_of_it


def test_missing_uv_is_named(
    builder: EnvironmentBuilder, shared: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "runner/bin/uv").unlink()
    monkeypatch.setenv("PATH", str(shared))
    with pytest.raises(StageFailedError, match=r"runner/bin/uv nor on PATH"):
        builder.ensure(code, None, None, "c0de")


def test_remains_of_a_killed_build_are_deleted(
    builder: EnvironmentBuilder, shared: Path, code: Path
) -> None:
    ready = builder.ensure(code, "requirements.txt", None, "c0de")
    building = ready.with_suffix(".building")
    ready.rename(building)
    (building / "half").touch()
    assert builder.ensure(code, "requirements.txt", None, "c0de") == ready
    assert not (ready / "half").exists()
    assert not building.exists()


def test_termination_stops_a_build(shared: Path, code: Path) -> None:
    slow = shared / "runner/bin/uv.slow"
    slow.touch()

    def check() -> None:
        if calls(shared):
            raise TerminatedError

    with pytest.raises(TerminatedError):
        EnvironmentBuilder(shared, lambda *_: None, check).ensure(code, None, None, "c0de")
    assert slow.exists(), "uv was not stopped"


def test_two_tasks_of_a_node_build_once(shared: Path, code: Path) -> None:
    def build() -> None:
        builder = EnvironmentBuilder(shared, lambda *_: None, lambda: None)
        builder.ensure(code, "requirements.txt", None, "c0de")

    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [call.split()[0] for call in calls(shared)] == ["venv", "pip"]


def test_waiting_for_another_builder_can_be_stopped(tmp_path: Path) -> None:
    def check() -> None:
        raise TerminatedError

    path = tmp_path / "locks/x"
    with node_lock(path, check), pytest.raises(TerminatedError), node_lock(path, check):
        pass
    with node_lock(path, check):
        assert path.exists()


def test_environment_is_built_although_the_shared_cache_was_deleted(
    shared: Path, code: Path, tmp_path: Path
) -> None:
    (shared / "runner" / "cache").symlink_to(tmp_path / "deleted")
    builder = EnvironmentBuilder(shared, lambda *_: None, lambda: None)
    environment = builder.ensure(code, "requirements.txt", None, "c0de")
    assert (tmp_path / "deleted" / "locks" / environment.name).is_file()
    assert environment.is_dir()


def test_next_node_copies_environment_from_cache(tmp_path: Path, code: Path) -> None:
    (tmp_path / "lasting").mkdir()
    built: list[Path] = []
    for name in ("node-1", "node-2"):
        shared = tmp_path / name
        install_fake_uv(shared)
        (shared / "runner/cache").symlink_to(tmp_path / "lasting")
        builder = EnvironmentBuilder(shared, lambda *_: None, lambda: None)
        built.append(builder.ensure(code, "requirements.txt", None, "c0de"))
        if name == "node-1":
            assert len(calls(shared)) == 2
            shutil.rmtree(shared)  # the node is lost
    assert not (tmp_path / "node-2/uv.log").exists()
    assert (built[1] / "installed.txt").read_text() == "keras==3.0\n"
    assert (built[1] / "bin/python").is_symlink()


def test_next_node_copies_byte_code_that_a_script_has_written(tmp_path: Path, code: Path) -> None:
    (tmp_path / "lasting").mkdir()

    def environment_on(name: str) -> Path:
        shared = tmp_path / name
        if not shared.exists():
            install_fake_uv(shared)
            (shared / "runner/cache").symlink_to(tmp_path / "lasting")
        builder = EnvironmentBuilder(shared, lambda *_: None, lambda: None)
        return builder.ensure(code, "requirements.txt", None, "c0de")

    written = environment_on("node-1") / "keras/__pycache__/layers.pyc"
    written.parent.mkdir(parents=True)
    written.write_text("code")
    assert not (environment_on("node-2") / "keras").exists(), "stored before the script ran"
    environment_on("node-1")
    assert (environment_on("node-3") / "keras/__pycache__/layers.pyc").read_text() == "code"


def test_store_deletes_least_recently_used_environments(tmp_path: Path) -> None:
    store = EnvironmentStore(tmp_path / "lasting/envs")
    for number in range(MAX_ENVIRONMENTS + 2):
        source = tmp_path / f"e{number}"
        source.mkdir()
        (source / "f").touch()
        (source / "bin").mkdir()
        (source / "bin/python").symlink_to(sys.executable)
        os.utime(source, (number, number))
        store.add(source.name, source)
    assert not store.copy_to("e0", tmp_path / "t0")
    assert store.copy_to(f"e{MAX_ENVIRONMENTS + 1}", tmp_path / "t1")
    assert (tmp_path / "t1/f").exists()
    assert len(list((tmp_path / "lasting/envs").iterdir())) == MAX_ENVIRONMENTS


def real_uv() -> str | None:
    beside = shutil.which("uv", path=str(Path(sys.executable).parent))
    return beside or shutil.which("uv")


@pytest.mark.skipif(real_uv() is None, reason="uv is not installed")
def test_environment_of_real_uv_works_after_the_rename(
    tmp_path: Path, code: Path, until: Callable[[Callable[[], object]], None]
) -> None:
    uv = tmp_path / "shared/runner/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.symlink_to(str(real_uv()))
    builder = EnvironmentBuilder(tmp_path / "shared", lambda *_: None, lambda: None)
    environment = builder.ensure(code, None, None, "c0de")
    prefix = subprocess.run(
        [environment / "bin/python", "-c", "import sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert prefix.stdout.strip() == str(environment)


@pytest.mark.slow
@pytest.mark.skipif(real_uv() is None, reason="uv is not installed")
def test_recipe_without_python_gets_a_newer_one_on_old_nodes(
    builder: EnvironmentBuilder, shared: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def find(_: object, request: str) -> Path:
        asked.append(request)
        return Path(sys.executable)

    monkeypatch.setattr(EnvironmentBuilder, "_find_python", find)
    usual = builder.ensure(code, "requirements.txt", None, "c0de")
    assert asked == []
    monkeypatch.setattr(
        "runner.node.environment.virtual_env.MIN_PYTHON", (sys.version_info[0] + 1, 0)
    )
    assert builder.ensure(code, "requirements.txt", None, "c0de") != usual
    assert builder.ensure(code, "requirements.txt", "3.11", "c0de") != usual
    assert asked == ["3.12", "3.11"]


def test_python_version_is_found_by_uv(tmp_path: Path, code: Path) -> None:
    uv = tmp_path / "shared/runner/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.symlink_to(str(real_uv()))
    builder = EnvironmentBuilder(tmp_path / "shared", lambda *_: None, lambda: None)
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    environment = builder.ensure(code, None, wanted, "c0de")
    found = subprocess.run(
        [environment / "bin/python", "-V"], capture_output=True, text=True, check=True
    )
    assert f"Python {wanted}." in found.stdout


def test_python_that_cannot_be_downloaded_is_named(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    uv = tmp_path / "shared/runner/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.symlink_to(str(real_uv()))
    builder = EnvironmentBuilder(tmp_path / "shared", lambda *_: None, lambda: None)
    missing = r"Python 3\.99 is not on the node and cannot be downloaded: "
    with pytest.raises(StageFailedError, match=missing) as caught:
        builder.ensure(code, None, "3.99", "c0de")
    assert caught.value.code == "PythonMissing"


@pytest.mark.skipif(real_uv() is None, reason="uv is not installed")
def test_python_of_the_node_is_used_if_it_satisfies_the_project(
    builder: EnvironmentBuilder, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def find(_: object, request: str) -> Path:
        asked.append(request)
        return Path(sys.executable)

    monkeypatch.setattr(EnvironmentBuilder, "_find_python", find)
    usual = builder.ensure(code, "requirements.txt", None, "c0de")
    own = ".".join(map(str, sys.version_info[:2]))
    for request in (">=3.8", f"~={own}", f"=={own}.*", ">=3.8,!=3.9.1,<4"):
        assert builder.ensure(code, "requirements.txt", request, "c0de") == usual
    assert asked == []
    for request in (">=3.90", "<3.8", f"!={own}.*", "===x"):
        assert builder.ensure(code, "requirements.txt", request, "c0de") != usual
    assert asked == [">=3.90", "<3.8", f"!={own}.*", "===x"]
    # An old node prefers the version that a recipe without a request gets there.
    monkeypatch.setattr("runner.node.environment.virtual_env.MIN_PYTHON", (4, 0))
    builder.ensure(code, "requirements.txt", ">=3.8", "c0de")
    assert asked[-1] == "3.12"


@pytest.mark.parametrize("version", ["3.8.0", "3.11.0", "3.11.7", "3.12.0", "3.13.2", "4.0.0"])
def test_requests_are_read_as_by_packaging(version: str) -> None:
    numbers = tuple(map(int, version.split(".")))
    wanted = ("3", "3.11", "3.11.0", "3.11.7", "3.12", "4.0")
    requests = [
        f"{operator}{each}" for operator in ("==", "!=", "<", "<=", ">", ">=") for each in wanted
    ]
    requests += [f"{operator}{each}.*" for operator in ("==", "!=") for each in wanted]
    requests += [f"~={each}" for each in wanted if "." in each]
    for first, second in zip(requests, reversed(requests), strict=True):
        for request in (first, f"{first}, {second}"):
            assert meets(request, numbers) == SpecifierSet(request).contains(version), request


def test_hanging_uv_query_fails_with_advice(
    builder: EnvironmentBuilder, shared: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "runner/bin/uv.slow").touch()
    monkeypatch.setattr(uv_process, "QUERY_TIMEOUT_S", 0.2)
    hangs = r"`uv python find` gave no answer in 0\.2 s: .*remove `python` from"
    with pytest.raises(StageFailedError, match=hangs):
        builder.ensure(code, None, "3.12", "c0de")


def break_interpreter(environment: Path) -> None:
    python = environment / "bin/python"
    python.unlink()
    python.symlink_to(environment / "gone")


def test_environment_without_interpreter_is_built_again(
    builder: EnvironmentBuilder, shared: Path, code: Path
) -> None:
    ready = builder.ensure(code, "requirements.txt", None, "c0de")
    break_interpreter(ready)
    assert builder.ensure(code, "requirements.txt", None, "c0de") == ready
    assert (ready / "bin/python").exists()
    assert [path.name for path in (shared / "runner/envs").iterdir()] == [ready.name]


def test_cached_environment_without_interpreter_is_not_used(tmp_path: Path, code: Path) -> None:
    (tmp_path / "lasting").mkdir()
    for name in ("node-1", "node-2"):
        shared = tmp_path / name
        install_fake_uv(shared)
        (shared / "runner/cache").symlink_to(tmp_path / "lasting")
        builder = EnvironmentBuilder(shared, lambda *_: None, lambda: None)
        environment = builder.ensure(code, "requirements.txt", None, "c0de")
        assert (environment / "bin/python").exists()
        kept = tmp_path / "lasting/envs" / environment.name
        assert (kept / "bin/python").exists()
        break_interpreter(kept)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses prctl")
def test_uv_dies_with_a_killed_agent(
    tmp_path: Path, code: Path, until: Callable[[Callable[[], object]], None]
) -> None:
    shared = tmp_path / "shared"
    uv = install_fake_uv(shared)
    uv.write_text(uv.read_text().replace("out.write(", "out.write(f'{os.getpid()} ' + "))
    (shared / "runner/bin/uv.slow").touch()
    text = (
        "from pathlib import Path\n"
        "from runner.node.environment.virtual_env import EnvironmentBuilder\n"
        f"shared, code = Path({str(shared)!r}), Path({str(code)!r})\n"
        "EnvironmentBuilder(shared, lambda *_: None, lambda: None).ensure(code, None, None, '')\n"
    )
    agent = subprocess.Popen([sys.executable, "-c", text])
    until(lambda: calls(shared))
    agent.kill()
    agent.wait()
    uv_pid = int(calls(shared)[0].split()[0])
    until(lambda: not alive(uv_pid))
    assert not alive(uv_pid)


@pytest.mark.parametrize(
    "text",
    [
        "-rbase.txt\n",
        "-r base.txt  # common\n",
        "-r\tbase.txt\r\n",
        "--requirement = base.txt\n",
        "\ufeff-r base.txt\n",
        '-r "base.txt"\n',
        "keras \\\n  --hash=sha256:00 \\\n  --hash=sha256:11\n-cbase.txt\n",
        "-r \\\n  base.txt\n",
    ],
)
def test_all_spellings_of_includes_are_followed(code: Path, text: str) -> None:
    (code / "requirements.txt").write_text(text, encoding="utf-8")
    (code / "base.txt").write_text("café-utils\n", encoding="utf-8")
    requirements = Requirements(code / "requirements.txt", code)
    assert list(requirements.texts) == ["requirements.txt", "base.txt"]
    assert not requirements.local


@pytest.mark.parametrize(
    ("line", "local"),
    [
        ("./lib[all]", True),
        ("lib/", True),
        ("wheels/a-1.0-py3-none-any.whl", True),
        ("a-1.0-py3-none-any.whl ; python_version > '3'", True),
        ("a @ file:lib", True),
        ("a @ ./lib", True),
        ("--find-links=wheels", True),
        ("-f wheels", True),
        ("keras[jax]>=3  # with a/slash", False),
        ("a @ git+https://example.org/a.git@v1", False),
        ("https://example.org/a-1.0-py3-none-any.whl", False),
        ("-r https://example.org/base.txt", False),
        ("--find-links https://example.org/wheels/", False),
        ("--index-url=https://example.org/simple/", False),
        ("# ./lib", False),
    ],
)
def test_requirements_from_the_code_are_detected(code: Path, line: str, local: bool) -> None:
    (code / "requirements.txt").write_text(line + "\n")
    assert Requirements(code / "requirements.txt", code).local is local


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "block", "local"),
    [
        ("train.py", '# /// script\n# dependencies = ["keras"]\n# ///\n', False),
        ("train.py", '# /// script\n# dependencies = ["a @ file:lib"]\n# ///\n', True),
        ("pyproject.toml", '[project]\ndependencies = ["-e", "https://a/b"]\n', False),
        ("pyproject.toml", '[tool.uv.sources]\na = {path = "lib"}\n', True),
    ],
)
def test_environment_depends_on_dependencies_of_project_or_script(
    builder: EnvironmentBuilder, code: Path, name: str, block: str, local: bool
) -> None:
    (code / name).write_text(f"{block}x = 1\n")
    first = builder.ensure(code, name, None, "c0de")
    assert (builder.ensure(code, name, None, "0ther") != first) is local
    (code / name).write_text(f"{block}x = 2\n")
    is_of_script = name.endswith(".py")
    assert (builder.ensure(code, name, None, "c0de") == first) is is_of_script
    (code / name).write_text(block.replace("a", "b"))
    assert builder.ensure(code, name, None, "c0de") != first


def test_requirements_in_utf16_are_rejected_with_a_reason(code: Path) -> None:
    (code / "requirements.txt").write_text("keras\n", encoding="utf-16")
    with pytest.raises(StageFailedError, match="save it as UTF-8"):
        Requirements(code / "requirements.txt", code)
