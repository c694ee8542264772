"""verify.sh fails for each defect and passes for a machine that is whole; so does node-health."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.unit.infra.image_machine import Machine, changes, versions

CHECKS = ("driver", "cuda", "cudnn", "container", "tools", "holds", "health")


def cudnn(folder: Path, says: int) -> dict[str, str]:
    """Build a library with `cudnnGetVersion`. Return the variable with which it is found."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    code = folder / "cudnn.c"
    code.write_text(f"unsigned long cudnnGetVersion(void) {{ return {says}UL; }}\n")
    library = folder / "libcudnn.so.9"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(code)], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Return a provisioned machine, shared by all tests because verify.sh does not change it."""
    made = Machine(tmp_path_factory.mktemp("machine"), {"NODE_HEALTH_DISK_GIB": "0"})
    assert made.run("provision.sh").returncode == 0
    library = tmp_path_factory.mktemp("lib")
    made.variables.update(cudnn(library, 91002))
    return made


@pytest.fixture(autouse=True)
def fresh_log(request: pytest.FixtureRequest) -> None:
    if "machine" in request.fixturenames:
        request.getfixturevalue("machine").calls()


def outcomes(text: str) -> dict[str, str]:
    found = re.findall(r"^(ok|FAILED) +(\w+): ", text, re.MULTILINE)
    return {check: outcome for outcome, check in found}


def test_complete_machine_passes_every_check_unchanged(machine: Machine):
    before = machine.tree()
    done = machine.run("verify.sh")
    assert (done.returncode, done.stderr) == (0, "")
    assert outcomes(done.stdout) == dict.fromkeys(CHECKS, "ok")
    assert machine.tree() == before
    asked = ("nvidia-smi", "nvcc", "docker", "nvidia-ctk", "uv", "blobfuse2", "dmesg")
    assert [call for call in changes(machine.calls()) if not call.startswith(asked)] == []


DEFECTS = [
    ("driver", {"STUB_GPU": "none"}, "couldn't communicate"),
    ("driver", {"STUB_GPU": "gone"}, "finds no GPU"),
    ("driver", {"STUB_DRIVER": "535.274.02"}, "not from branch 580"),
    ("cuda", {"STUB_FAIL": "nvcc *"}, "nvcc"),
    ("cuda", {"STUB_CUDA": "11.8"}, "not from CUDA 12.8"),
    ("cuda", {"STUB_KERNEL_BUILD": "broken"}, "does not compile: square.cu(5)"),
    ("cuda", {"STUB_KERNEL_RUN": "echo no kernel image is available; exit 1"}, "does not run"),
    ("cudnn", {"LD_LIBRARY_PATH": ""}, "does not load"),
    ("container", {"STUB_DOCKER": "down"}, "docker import"),
    ("container", {"STUB_DOCKER": "no-runtime"}, "could not select device driver"),
    ("container", {"STUB_CONTAINER": ""}, "no GPU in a container"),
    ("container", {"STUB_CONTAINER": "No devices found."}, "no GPU in a container"),
    ("tools", {"STUB_TOOLKIT": "1.14.0"}, "nvidia-ctk is"),
    ("tools", {"STUB_UV": "0.1.0"}, "uv is"),
    ("tools", {"STUB_FAIL": "blobfuse2 *"}, "blobfuse2"),
    ("holds", {"STUB_KERNEL": "6.17.0-9999-azure"}, "is not on hold"),
    ("health", {"STUB_ECC": "0, 3"}, "uncorrectable memory errors"),
]


@pytest.mark.parametrize(("check", "defect", "says"), DEFECTS)
def test_each_defect_fails_its_check(
    machine: Machine, check: str, defect: dict[str, str], says: str
):
    done = machine.run("verify.sh", check, **defect)
    assert done.returncode == 1
    assert outcomes(done.stdout) == {check: "FAILED"}
    assert says in done.stdout
    error, why, fix = done.stderr.splitlines()
    assert error == f"error[R-IMAGE-VERIFY]: checks failed: {check}"
    assert why.startswith("  why: ")
    assert check in fix


@pytest.mark.parametrize(("says", "passes"), [(8907, False), (90100, False), (91002, True)])
def test_cudnn_must_be_the_pinned_one(machine: Machine, tmp_path: Path, says: int, passes: bool):
    done = machine.run("verify.sh", "cudnn", **cudnn(tmp_path, says))
    assert (done.returncode == 0) is passes
    assert (f"the installed cuDNN is {says}" in done.stdout) is not passes


def test_one_defect_does_not_hide_the_others(machine: Machine, tmp_path: Path):
    done = machine.run("verify.sh", STUB_CONTAINER="", **cudnn(tmp_path, 8907))
    assert done.returncode == 1
    failed = {check for check, outcome in outcomes(done.stdout).items() if outcome == "FAILED"}
    assert failed == {"cudnn", "container"}
    assert set(outcomes(done.stdout)) == set(CHECKS)


def test_enabled_upgrades_fail(machine: Machine):
    unit = machine.stub / "units" / "unattended-upgrades.service"
    unit.write_text("enabled\n")
    done = machine.run("verify.sh", "holds")
    unit.write_text("masked\n")
    assert done.returncode == 1
    assert "unattended upgrades are enabled" in done.stdout


def test_unprovisioned_machine_fails_nearly_every_check(tmp_path: Path):
    bare = Machine(tmp_path)
    done = bare.run("verify.sh", "cudnn", "holds", "health")
    assert done.returncode == 1
    assert set(outcomes(done.stdout).values()) == {"FAILED"}


def test_unknown_check_fails(machine: Machine):
    done = machine.run("verify.sh", "drivr")
    assert done.returncode == 1
    assert "unknown check" in done.stdout
    assert machine.run("verify.sh", "--list").stdout.split() == list(CHECKS)


def test_verification_container_is_built_locally_without_a_registry(machine: Machine):
    assert machine.run("verify.sh", "container").returncode == 0
    calls = machine.calls()
    assert not [call for call in calls if call.startswith("docker pull")]
    assert any("--network none" in call and "--gpus all" in call for call in calls)
    assert any(call.startswith("docker image rm") for call in calls)
    with tarfile.open(machine.stub / "container.tar") as container:
        names = container.getnames()
        assert "bin/sh" in names
        assert container.getmember("bin/sh").isfile(), "a link would lead out of the container"
    assert not [name for name in names if "nvidia" in name], "the toolkit has to bring it"


HEALTHY = {"NODE_HEALTH_DISK_GIB": "0"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "ok   gpu: 1"),
        ({"NODE_HEALTH_GPUS": "1"}, "ok   gpu: 1"),
        ({"STUB_ECC": "0, [N/A]"}, "ok   gpu: 1"),
        ({"STUB_ECC": "0, 0\n1, 0", "NODE_HEALTH_GPUS": "2"}, "ok   gpu: 2"),
        ({"NODE_HEALTH_GPUS": "0", "STUB_GPU": "none"}, "ok   disk"),
        ({"STUB_DMESG": "NVRM: Xid (PCI:0001:00:00): 13, a fault of a program"}, "ok   xid"),
    ],
)
def test_healthy_node_passes_the_health_check(tmp_path: Path, given: dict[str, str], says: str):
    done = Machine(tmp_path).run("health.sh", **{**HEALTHY, **given})
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout
    assert "bad" not in done.stdout


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"STUB_GPU": "none"}, "bad  gpu: nvidia-smi"),
        ({"NODE_HEALTH_GPUS": "2"}, "bad  gpu: found 1, expected 2"),
        ({"STUB_ECC": "0, 0\n1, 0", "NODE_HEALTH_GPUS": "1"}, "bad  gpu: found 2, expected 1"),
        ({"STUB_ECC": "0, 0\n1, 12"}, "bad  gpu: uncorrectable memory errors"),
        ({"STUB_DMESG": "NVRM: Xid (PCI:0001:00:00): 79, GPU has fallen off"}, "bad  xid"),
        ({"NODE_HEALTH_DISK_GIB": "99999999"}, "bad  disk"),
        ({"NODE_HEALTH_DISK_GIB": "all"}, "not a number"),
        ({"NODE_HEALTH_GPUS": "many"}, "not a number"),
        ({"AZ_BATCH_NODE_ROOT_DIR": "/no/such/folder"}, "bad  disk"),
    ],
)
def test_unhealthy_node_names_the_reason(tmp_path: Path, given: dict[str, str], says: str):
    done = Machine(tmp_path).run("health.sh", **{**HEALTHY, **given})
    assert done.returncode == 1
    assert says in done.stdout


def test_image_contains_this_health_check(machine: Machine):
    installed = machine.root / "opt/runner/bin/node-health"
    assert installed.read_bytes() == (machine.scripts / "health.sh").read_bytes()
    assert installed.stat().st_mode & 0o111
    packages = (machine.root / "opt/runner/packages.txt").read_text().split()
    assert f"blobfuse2={versions()['BLOBFUSE2_VERSION']}" in packages
