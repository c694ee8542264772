"""The options of the emulator that `runner local up` checks and keeps."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.home import HomePaths
from runner.flows.local import services
from runner.flows.local.emulator_options import EmulatorOptions, with_files
from runner.flows.local.state import SEED, LocalState, load_state, save_state
from runner.protocol.errors import RunnerError

Keep = Callable[[LocalState | None, EmulatorOptions], LocalState]

_STATE = LocalState(25001, 25002, nodes=1, slots=1, files_port=3)
_SECRETS = {"batch": "secret", "storage": "secret", SEED: "secret"}
_SERVER = "canonical:ubuntu-24_04-lts:server"
_RULE = '[[rules]]\noperation = "Job_Add"\ncode = "ServerBusy"\n'


@pytest.fixture
def paths(tmp_path: Path) -> HomePaths:
    return HomePaths(tmp_path / "home")


@pytest.fixture
def keep(paths: HomePaths) -> Keep:
    return lambda before, options: with_files(paths, _STATE, before, options)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "faults.toml"
    path.write_text(_RULE)
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    folder = tmp_path / "image"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    (folder / "bin" / "python3").symlink_to(sys.executable)
    return folder


def test_options_are_kept_until_removed(
    rules: Path, image: Path, keep: Keep, paths: HomePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rules.parent)
    options = EmulatorOptions(faults=Path(rules.name), images=[f"{_SERVER}={image.name}"])
    given = keep(None, options)
    assert (given.faults, given.images) == (str(rules), (f"{_SERVER}={image}",))
    save_state(paths, given)
    stored = load_state(paths)
    off = keep(stored, EmulatorOptions(faults=False, images=()))
    assert (stored, keep(stored, EmulatorOptions()), off) == (given, given, _STATE)
    words = [services.batch_launch(paths, one, _SECRETS).arguments for one in (given, off)]
    assert [("--faults" in each, "--image" in each) for each in words] == [
        (True, True),
        (False, False),
    ]


def test_state_without_options_can_be_read_by_earlier_versions(paths: HomePaths) -> None:
    save_state(paths, _STATE)
    assert not {"faults", "faults_digest", "images"} & set(paths.local_state.read_text().split('"'))


def test_changed_rules_are_loaded_by_the_next_start(rules: Path, keep: Keep) -> None:
    before = keep(None, EmulatorOptions(faults=rules))
    rules.write_text(_RULE + "count = 1\n")
    after = keep(before, EmulatorOptions())
    assert before == replace(after, faults_digest=before.faults_digest) != after


@pytest.mark.parametrize(
    "text", ["", "[[rules]]\n", _RULE.replace("Job_Add", "Job_Ad"), _RULE + "rate = 0\n", _RULE * 2]
)
def test_rules_that_the_emulator_refuses_are_refused(rules: Path, keep: Keep, text: str) -> None:
    rules.write_text(text)
    with pytest.raises(RunnerError) as caught:
        keep(None, EmulatorOptions(faults=rules))
    assert caught.value.code == "R-LOCAL-OPTION"
    assert str(rules) in (caught.value.why or "")


@pytest.mark.parametrize(
    "text", ["", "x", f"{_SERVER}=", f"{_SERVER}=missing", "canonical:none:none=image", "=image"]
)
def test_images_that_the_emulator_refuses_are_refused(keep: Keep, text: str) -> None:
    with pytest.raises(RunnerError) as caught:
        keep(None, EmulatorOptions(images=[text]))
    assert caught.value.code == "R-LOCAL-OPTION"


def test_image_whose_python_does_not_run_is_refused(image: Path, keep: Keep) -> None:
    program = image / "bin" / "python3"
    program.unlink()
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    with pytest.raises(RunnerError) as caught:
        keep(None, EmulatorOptions(images=[f"{_SERVER}={image}"]))
    assert "does not run" in (caught.value.why or "")


def test_earlier_options_that_are_gone_name_how_to_remove_them(
    rules: Path, image: Path, keep: Keep
) -> None:
    before = keep(None, EmulatorOptions(faults=rules, images=[f"{_SERVER}={image}"]))
    rules.unlink()
    with pytest.raises(RunnerError) as caught:
        keep(before, EmulatorOptions())
    assert "cannot read" in (caught.value.why or "")
    assert "runner local up --no-faults --no-images" in (caught.value.fix or "")
    shutil.rmtree(image)
    with pytest.raises(RunnerError) as caught:
        keep(before, EmulatorOptions(faults=False))
    assert (caught.value.fix or "").endswith("runner local up --no-images")


def test_fix_of_a_refused_image_does_not_remove_the_earlier_rules(
    rules: Path, tmp_path: Path, keep: Keep
) -> None:
    before = keep(None, EmulatorOptions(faults=rules))
    with pytest.raises(RunnerError) as caught:
        keep(before, EmulatorOptions(images=[f"{_SERVER}={tmp_path / 'none'}"]))
    assert "--no-faults" not in (caught.value.fix or "")


def test_folder_is_no_file_of_rules(tmp_path: Path, keep: Keep) -> None:
    for folder in (tmp_path, Path()):
        with pytest.raises(RunnerError) as caught:
            keep(None, EmulatorOptions(faults=folder))
        assert caught.value.code == "R-LOCAL-OPTION"
