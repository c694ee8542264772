"""The environment of an attempt is recorded, and its versions are used to reproduce a run."""

from __future__ import annotations

from pathlib import Path

from runner.node.environment.virtual_env import describe_environment, installed_packages, satisfies


def environment(folder: Path, *installed: str) -> Path:
    site = folder / "lib" / "python3.12" / "site-packages"
    for name in installed:
        (site / f"{name}.dist-info").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.12.3\n")
    return folder


def test_installed_packages_are_those_from_an_index(tmp_path: Path) -> None:
    env = environment(tmp_path, "annotated_doc-0.0.7", "torch-2.3.0+cpu", "mine-1.0")
    site = env / "lib" / "python3.12" / "site-packages"
    (site / "mine-1.0.dist-info" / "direct_url.json").write_text("{}")
    assert installed_packages(env) == {"annotated-doc": "0.0.7", "torch": "2.3.0+cpu"}


def test_description_names_interpreter_and_machine(tmp_path: Path) -> None:
    found = describe_environment(environment(tmp_path))
    assert found["python"] == "3.12.3"
    assert found["cpus"] >= 1
    assert isinstance(found["gpus"], list)


def test_environment_satisfies_its_own_versions(tmp_path: Path) -> None:
    env = environment(tmp_path, "numpy-2.1")
    assert satisfies(env, {"numpy": "2.1", "other": "1"})
    assert not satisfies(env, {"numpy": "2.2"})
