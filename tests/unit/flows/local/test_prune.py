"""`runner local prune`: deleted files, and files kept for services and other homes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batch_emulator.executor import isolation
from runner.azure.batch.jobs import NodeTaskFile
from runner.core.home import HomePaths
from runner.core.progress import ignore_progress
from runner.core.settings import AZURE, Settings, load_settings
from runner.core.states import TaskView
from runner.flows.local import azurite, prune, task_folders
from runner.flows.local.lifecycle import reset, reset_state
from runner.flows.local.state import check_packages_room
from runner.flows.runs.history import RunHistory
from runner.flows.runs.rows import RunRow
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.results import LeftOut, parse_result
from runner.protocol.run_spec import RecipeSpec, parse_run
from tests.disks import lock
from tests.unit.flows.runs.test_run_index import result_of, run_of


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "none.yaml").touch()
    env = {"RUNNER_HOME": str(tmp_path / "home"), "RUNNER_CONFIG": str(tmp_path / "none.yaml")}
    monkeypatch.setattr(prune, "is_reachable", lambda _: False)
    monkeypatch.setattr(task_folders, "OUTSIDE", tmp_path / "outside")
    return load_settings({"target": "local"}, cwd=tmp_path, env=env)


def write(path: Path, size_bytes: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size_bytes)
    return path


def pruned(settings: Settings, *, everything: bool = False) -> int:
    plan = prune.plan_prune(settings, everything=everything)
    prune.prune(settings, plan, ignore_progress)
    return plan.size_bytes


def test_caches_that_tasks_locked_are_pruned(settings: Settings) -> None:
    """Go makes the folders of its module cache read-only."""
    cache = HomePaths(settings.home).cache / "uv"
    cache.mkdir(parents=True)
    lock(cache)
    pruned(settings, everything=True)
    assert not cache.exists()


@pytest.mark.parametrize("kept", [False, True], ids=["reset", "reset --state"])
def test_reset_deletes_folders_that_tasks_locked(settings: Settings, kept: bool) -> None:
    paths = HomePaths(settings.home)
    (paths.batch_data / "nodes").mkdir(parents=True)
    lock(paths.batch_data / "nodes")
    state, model = write(paths.batch_data / "state.sqlite"), write(paths.blob_data / "model")
    (reset_state if kept else reset)(settings, ignore_progress)
    assert not (paths.batch_data / "nodes").exists()
    assert not state.exists()
    assert model.exists() is paths.local.exists() is kept


def test_prune_deletes_unused_versions_and_old_logs(settings: Settings) -> None:
    paths = HomePaths(settings.home)
    kept = [
        write(paths.azurite(azurite.VERSION) / "main.js"),
        write(paths.node(azurite.WHEEL_VERSION) / "node"),
        write(paths.azurite(".new-now") / "main.js"),
        write(paths.logs / "batch.log"),
        write(paths.cache / "uv" / "wheel"),
    ]
    abandoned = write(paths.azurite(".new-old") / "main.js", 30)
    os.utime(abandoned.parent, (0, 0))
    gone = [write(paths.azurite("3.0.0") / "main.js"), write(paths.logs / "batch.old.log", 5)]
    assert pruned(settings) == 45
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in (abandoned, *gone))


def test_prune_all_keeps_folders_linked_by_nodes(
    settings: Settings,
) -> None:
    paths = HomePaths(settings.home)
    wheel = write(paths.cache / "uv" / "wheel", 100)
    write(paths.cache / "user" / "uv" / "wheel", 17)
    write(paths.cache / "user" / "jax" / "jit-cache", 3)
    write(paths.data("mnist") / "images", 3)
    program = write(paths.cache / "uv-of-tasks" / "uv")
    node = write(paths.batch_data / "nodes" / "n1" / "file")
    node.unlink()
    node.hardlink_to(wheel)
    assert pruned(settings, everything=True) == 23, "a file that a node has, too, frees nothing"
    assert not wheel.exists()
    assert not paths.data("mnist").exists()
    assert (paths.cache / "user").is_dir()
    assert program.exists()
    assert node.exists()


def test_packages_are_kept_while_a_task_is_active(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write(HomePaths(settings.home).cache / "uv" / "wheel")
    monkeypatch.setattr(prune, "is_reachable", lambda _: True)
    monkeypatch.setattr(prune, "connect", lambda _: None)
    monkeypatch.setattr(prune, "runs_container", lambda _: None)
    monkeypatch.setattr(prune, "unfinished_tasks", lambda *_: [("job", "task")])
    monkeypatch.setattr(prune, "list_runs", lambda *_, **__: RunHistory((), 0))
    plan = prune.plan_prune(settings, everything=True)
    assert plan.notes[0].startswith("packages are kept while tasks run")
    prune.prune(settings, plan, ignore_progress)
    assert wheel.exists()


def test_folder_with_a_unique_file_is_kept_and_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {
        "whole-1": result_of("whole-1"),
        "partial-1": result_of("partial-1")
        | {"left_out": [LeftOut("big.bin", 3, "size").to_json()]},
        "damaged-1": {},
    }
    rows = tuple(
        RunRow(
            run_id,
            parse_run(json.dumps(run_of(run_id)).encode(), run_id),
            None,
            parse_result(json.dumps(result_of(run_id)).encode(), run_id),
        )
        for run_id in results
    )
    tasks = {row.spec.task_id: TaskView("completed") for row in rows if row.spec}
    stand_ins: dict[str, Callable[..., Any]] = {
        "is_reachable": lambda _: True,
        "connect": lambda _: None,
        "runs_container": lambda _: None,
        "unfinished_tasks": lambda *_: [],
        "list_runs": lambda *_, **__: RunHistory(rows, 0),
        "list_tasks": lambda *_: tasks,
        "list_task_files": lambda *_: [NodeTaskFile("wd/big.bin", 3)],
        "load_result": lambda _, run_id: parse_result(json.dumps(results[run_id]).encode(), run_id),
        "in_parallel": lambda function, items: [*map(function, items)],
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(prune, name, stand_in)
    plan = prune.plan_prune(settings, everything=False)
    assert [(item.what, item.size_bytes) for item in plan.items] == [("task folder", 3)]
    assert plan.notes == (
        "kept the folder of damaged-1: its result cannot be read",
        "kept the folder of partial-1: big.bin is only there",
    )


def test_shared_cache_is_kept(settings: Settings, tmp_path: Path) -> None:
    wheel = write(tmp_path / "shared" / "uv" / "wheel")
    settings.home.mkdir(parents=True, exist_ok=True)
    HomePaths(settings.home).cache.symlink_to(tmp_path / "shared")
    assert pruned(settings, everything=True) == 0
    assert wheel.exists()


def outside(data: Path, name: str = "0123456789abcdef") -> Path:
    """Let an emulator that has ended leave a folder of tasks elsewhere; return the folder."""
    folder = task_folders.OUTSIDE / name
    data.mkdir(parents=True, exist_ok=True)
    isolation.Isolation(folder).settle(data)
    isolation._CLAIMS.pop(folder).close()
    write(folder / "cache" / "uv" / "wheel", 100)
    return folder


def test_record_of_the_emulator_is_the_one_that_prune_reads() -> None:
    assert (Path("/var/lib/batch-emulator"), task_folders.CLAIM) == (
        isolation._OUTSIDE,
        isolation._CLAIM,
    )


@pytest.mark.parametrize("inside", ["", "local/batch"], ids=["alone", "home"])
def test_folders_of_removed_homes_are_pruned(
    settings: Settings, tmp_path: Path, inside: str
) -> None:
    gone, used = tmp_path / "gone", tmp_path / "used"
    folder = outside(gone / inside)
    kept = outside(used / inside, "kept")
    shutil.rmtree(gone)
    plan = prune.plan_prune(settings, everything=False)
    assert [item.path for item in plan.items] == [str(folder)]
    assert str(gone) in plan.items[0].what
    assert pruned(settings) > 100
    assert list(task_folders.OUTSIDE.iterdir()) == [kept]


def test_folder_of_a_running_emulator_is_kept(settings: Settings, tmp_path: Path) -> None:
    folder = outside(tmp_path / "gone")
    isolation.Isolation(folder).settle(tmp_path / "gone")  # it runs, and its data dir is deleted
    shutil.rmtree(tmp_path / "gone")
    pruned(settings)
    assert (folder / "cache" / "uv" / "wheel").is_file()
    isolation._CLAIMS.pop(folder).close()
    pruned(settings)
    assert not folder.exists()


def test_link_among_the_folders_of_emulators_is_not_followed(
    settings: Settings, tmp_path: Path
) -> None:
    other = write(tmp_path / "other" / "precious")
    (tmp_path / "other" / task_folders.CLAIM).write_text(str(tmp_path / "gone" / "local" / "batch"))
    task_folders.OUTSIDE.mkdir()
    (task_folders.OUTSIDE / "0123456789abcdef").symlink_to(tmp_path / "other")
    assert pruned(settings) == 0
    assert other.is_file()


def test_home_that_returns_after_the_listing_keeps_its_folder(
    settings: Settings, tmp_path: Path
) -> None:
    folder = outside(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    plan = prune.plan_prune(settings, everything=False)
    (tmp_path / "gone").mkdir()
    prune.prune(settings, plan, ignore_progress)
    assert (folder / "cache").is_dir()


def test_emulator_claims_a_folder_that_is_removed_meanwhile(tmp_path: Path) -> None:
    """It waits for the removal, and gets a new folder instead of the removed one."""
    folder, data = tmp_path / "outside", tmp_path / "data"
    data.mkdir()
    folder.mkdir()
    with (folder / task_folders.CLAIM).open("a") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        thread = threading.Thread(target=isolation.Isolation(folder).settle, args=(data,))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        folder.rename(tmp_path / "removed")
    thread.join(300)
    assert not thread.is_alive()
    assert (folder / task_folders.CLAIM).read_text() == str(data)
    isolation._CLAIMS.pop(folder).close()


def test_home_on_a_disk_that_is_not_mounted_is_not_gone(settings: Settings, tmp_path: Path) -> None:
    outside(tmp_path / "mount" / "home")
    shutil.rmtree(tmp_path / "mount" / "home")
    assert pruned(settings) == 0


def test_folders_without_a_record_become_a_note(settings: Settings) -> None:
    write(task_folders.OUTSIDE / ("0" * 16) / "cache" / "wheel")
    plan = prune.plan_prune(settings, everything=True)
    assert not plan.items
    assert any("1 folder of an earlier version" in note for note in plan.notes)


def test_packages_outside_are_found_after_a_reset(settings: Settings) -> None:
    paths = HomePaths(settings.home)
    folder = outside(paths.batch_data)
    shutil.rmtree(paths.local)  # as a reset does, with the link to the folder
    kept = {(each.what, each.path): each.size_bytes for each in prune.kept_by_reset(paths)}
    assert kept["packages", folder] >= 100
    assert pruned(settings) == 0
    assert pruned(settings, everything=True) == 100
    assert not (folder / "cache" / "uv").exists()


def test_first_training_needs_room_for_its_packages(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RecipeSpec(requirements_file="requirements.txt")
    check_packages_room(settings, recipe)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=300 << 20))
    with pytest.raises(RunnerError) as caught:
        check_packages_room(settings, recipe)
    assert (caught.value.code, caught.value.exit_code) == ("R-DISK-SPACE", ExitCode.PREFLIGHT)
    assert "has 300 MB free, and 1,024 MB are needed" in (caught.value.why or "")
    check_packages_room(settings, replace(recipe, requirements_file=None))
    check_packages_room(replace(settings, target=AZURE), recipe)
    write(HomePaths(settings.home).cache / "user" / "uv" / "wheel")
    check_packages_room(settings, recipe)


def test_installations_need_room(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100 << 20))
    runtime = azurite.NodejsRuntime(Path("node"), ("npm",))
    paths = HomePaths(settings.home)
    for install in (
        lambda: azurite._install(paths, runtime, ignore_progress),
        lambda: azurite._install_nodejs(paths, ignore_progress),
    ):
        with pytest.raises(RunnerError) as caught:
            install()
        assert caught.value.code == "R-DISK-SPACE"
        assert "on this machine" in (caught.value.fix or "")
