"""`build.sh` with docker, podman and az replaced on PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.images.folders import FRAMEWORKS, IMAGES

STUB = Path(__file__).with_name("stub_engine.py")
SYSTEM = "/usr/bin:/bin"
DIGEST = "sha256:" + "ab" * 32
ACR = "stack.azurecr.io"


@dataclass(frozen=True)
class Workshop:
    """A copy of `images/`, programs of our own on PATH, and what they were told."""

    folder: Path
    bin: Path
    state: Path

    def run(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.folder / "build.sh"), *args],
            env={"PATH": f"{self.bin}:{SYSTEM}", "STUB_STATE": str(self.state), **environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def ok(self, *args: str, **environment: str) -> list[str]:
        done = self.run(*args, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def calls(self, *words: str) -> list[list[str]]:
        """Return the calls so far that begin with these words."""
        log = self.state / "calls.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        found = [[one["program"], *one["args"]] for one in map(json.loads, lines)]
        return [call for call in found if call[1 : 1 + len(words)] == list(words)]

    def install(self, *programs: str) -> None:
        for program in programs:
            text = STUB.read_text().replace("/usr/bin/env python3", f"{sys.executable} -IS", 1)
            (self.bin / program).write_text(text)
            (self.bin / program).chmod(0o755)

    def break_(self, what: str) -> None:
        (self.state / f"fail-{what}").touch()


@pytest.fixture
def bare(tmp_path: Path) -> Workshop:
    shop = Workshop(tmp_path / "images", tmp_path / "bin", tmp_path / "state")
    shutil.copytree(IMAGES, shop.folder, ignore=shutil.ignore_patterns("__pycache__"))
    shop.bin.mkdir()
    shop.state.mkdir()
    for tool in ("docker", "podman", "az"):  # the container engine of this machine must not be used
        (shop.bin / tool).write_text("#!/bin/sh\nexit 127\n")
        (shop.bin / tool).chmod(0o755)
    return shop


@pytest.fixture
def shop(bare: Workshop) -> Workshop:
    bare.install("docker", "az")
    return bare


def test_script_passes_shellcheck() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [str(shellcheck), str(IMAGES / "build.sh")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    assert done.returncode == 0


def test_image_is_built_from_its_folder_and_base(shop: Workshop) -> None:
    (name,) = shop.ok("cntk")
    (call,) = shop.calls("build")
    assert name.startswith("runner/cntk:")
    assert call[call.index("--tag") + 1] == name
    assert call[call.index("--build-arg") + 1] == "BASE=docker.io/library/ubuntu:16.04"
    assert call[call.index("--platform") + 1] == "linux/amd64"
    assert call[call.index("--file") + 1] == str(shop.folder / "cntk" / "Containerfile")
    assert call[-1] == str(shop.folder)


def test_all_builds_each_framework_once(shop: Workshop) -> None:
    names = shop.ok("all")
    assert [name.split("/")[1].split(":")[0] for name in names] == FRAMEWORKS
    assert len(shop.calls("build")) == len(FRAMEWORKS)


@pytest.mark.slow
def test_second_run_builds_nothing(shop: Workshop) -> None:
    first = shop.ok("all")
    assert shop.ok("all") == first
    assert len(shop.calls("build")) == len(FRAMEWORKS)
    shop.ok("--force", "cntk")
    assert len(shop.calls("build")) == len(FRAMEWORKS) + 1


@pytest.mark.parametrize(
    ("file", "renewed"),
    [
        ("pytorch/requirements.txt", {"pytorch"}),
        ("pytorch/Containerfile", {"pytorch"}),
        ("shared/smoke.py", set(FRAMEWORKS)),
        ("build.sh", set()),
        ("README.md", set()),
    ],
)
def test_tag_changes_only_with_the_contents_of_the_image(
    bare: Workshop, file: str, renewed: set[str]
) -> None:
    before = bare.ok("--tag", "all")
    with (bare.folder / file).open("a") as changed:
        changed.write("\n# changed\n")
    after = bare.ok("--tag", "all")
    assert {name.split("/")[1].split(":")[0] for name in set(after) - set(before)} == renewed


def test_python_caches_do_not_change_a_tag(bare: Workshop) -> None:
    before = bare.ok("--tag", "all")
    cache = bare.folder / "cntk" / "__pycache__"
    cache.mkdir()
    (cache / "smoke_test.cpython-312.pyc").write_bytes(b"x")
    assert bare.ok("--tag", "all") == before


def test_failed_build_names_the_image(shop: Workshop) -> None:
    shop.break_("build")
    done = shop.run("cntk", "pytorch")
    assert done.returncode == 1
    assert "error: cntk: the build of runner/cntk:" in done.stderr
    assert "fix: " in done.stderr
    assert done.stdout == ""
    assert len(shop.calls("build")) == 1


def test_podman_is_used_if_docker_does_not_answer(bare: Workshop) -> None:
    bare.install("podman")
    bare.ok("cntk", RUNNER_IMAGES_BUILD_FLAGS="--isolation=chroot --network=host")
    (call,) = bare.calls("build")
    assert call[:4] == ["podman", "build", "--isolation=chroot", "--network=host"]


def test_the_engine_can_be_chosen(shop: Workshop) -> None:
    shop.install("podman")
    shop.ok("--engine", "podman", "cntk")
    assert {call[0] for call in shop.calls()} == {"podman"}


def test_missing_engine_is_reported(bare: Workshop) -> None:
    done = bare.run("cntk")
    assert done.returncode == 3
    assert "no container engine is running (tried: docker podman)" in done.stderr


def pinned(shop: Workshop) -> Workshop:
    shop.ok("--pin", "cntk")
    return shop


@pytest.mark.slow
def test_pinning_writes_the_digests_and_builds_use_them(shop: Workshop) -> None:
    before = shop.ok("--tag", "all")
    shop.ok("--pin")
    text = (shop.folder / "versions.env").read_text()
    assert text.count(f"_DIGEST={DIGEST}\n") == len(FRAMEWORKS)
    after = shop.ok("--tag", "all")
    assert not set(before) & set(after)
    shop.ok("cntk")
    (call,) = shop.calls("build")
    assert f"BASE=docker.io/library/ubuntu:16.04@{DIGEST}" in call


def test_missing_base_is_named(shop: Workshop) -> None:
    shop.break_("pull")
    done = shop.run("--pin", "cntk")
    assert done.returncode == 1
    assert "cntk: docker.io/library/ubuntu:16.04 cannot be pulled" in done.stderr
    assert (shop.folder / "versions.env").read_text() == (IMAGES / "versions.env").read_text()


def test_push_signs_in_with_a_token_not_shown_in_arguments(shop: Workshop) -> None:
    (name,) = pinned(shop).ok("--push", ACR, "cntk")
    assert name.startswith(f"{ACR}/runner/cntk:")
    assert [call[1:] for call in shop.calls("push")] == [["push", name]]
    (az,) = shop.calls("acr", "login")
    assert az[3:6] == ["--name", "stack", "--expose-token"]
    (login,) = shop.calls("login")
    assert login[2] == ACR
    text = (shop.state / "calls.jsonl").read_text()
    assert "token-of-one-push" not in json.dumps(shop.calls())
    assert [one["stdin"] for one in map(json.loads, text.splitlines()) if one["stdin"]] == [
        "token-of-one-push"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("--push", "cntk"), ("cntk", "--push"), ("--push", "--force", "cntk")]
)
def test_push_without_a_host_uses_the_registry_of_the_stack(
    shop: Workshop, words: tuple[str, ...]
) -> None:
    shop.install("runner")
    (name,) = pinned(shop).ok(*words)
    assert name.startswith(f"{ACR}/runner/cntk:")
    assert shop.calls("image", "registry") == [["runner", "image", "registry"]]
    assert [call[1:] for call in shop.calls("push")] == [["push", name]]


def test_stack_can_be_given_by_name(shop: Workshop) -> None:
    shop.install("runner")
    pinned(shop).ok("--push", "--stack", "prod", "cntk")
    (call,) = shop.calls("image", "registry")
    assert call[3:] == ["--stack", "prod"]


def test_push_to_a_stack_without_registry_is_refused_before_builds(shop: Workshop) -> None:
    shop.install("runner")
    shop.break_("runner-image")
    done = pinned(shop).run("--push", "cntk")
    assert done.returncode == 3
    assert "runner image: broken on purpose" in done.stderr, "what runner said is shown"
    assert "fix:   follow the fix above, or name the registry" in done.stderr
    assert shop.calls("build") == []


def test_push_without_runner_needs_a_registry(shop: Workshop) -> None:
    done = pinned(shop).run("--push", "cntk")
    assert done.returncode == 3
    assert "name the registry: --push NAME.azurecr.io" in done.stderr


@pytest.mark.slow
def test_second_push_finds_the_tag_and_does_nothing(shop: Workshop) -> None:
    (name,) = pinned(shop).ok("--push", ACR, "cntk")
    assert shop.ok("--push", ACR, "cntk") == [name]
    assert len(shop.calls("build")) == len(shop.calls("push")) == 1


def test_built_image_is_pushed_without_a_second_build(shop: Workshop) -> None:
    pinned(shop).ok("cntk")
    shop.ok("--push", ACR, "cntk")
    assert len(shop.calls("build")) == len(shop.calls("push")) == 1


def test_other_registry_uses_the_sign_in_of_the_engine(shop: Workshop) -> None:
    pinned(shop).ok("--push", "localhost:5000", "cntk")
    pinned(shop).ok("--push", ACR, "--no-login", "cntk")
    assert shop.calls("login") == []
    assert len(shop.calls("push")) == 2


@pytest.mark.parametrize(
    ("broken", "problem", "code"),
    [
        ("az-acr", "az returned no token", 4),
        ("login", "docker could not sign in", 4),
        ("push", "could not be pushed", 1),
    ],
)
def test_failed_push_is_reported_with_a_fix(
    shop: Workshop, broken: str, problem: str, code: int
) -> None:
    pinned(shop)
    shop.break_(broken)
    done = shop.run("--push", ACR, "cntk")
    assert done.returncode == code
    assert problem in done.stderr
    assert "fix: " in done.stderr


def test_image_on_a_base_without_digest_is_not_pushed(shop: Workshop) -> None:
    text = (shop.folder / "versions.env").read_text().splitlines()
    lines = ["CNTK_DIGEST=" if line.startswith("CNTK_DIGEST") else line for line in text]
    (shop.folder / "versions.env").write_text("\n".join(lines) + "\n")
    done = shop.run("--push", ACR, "cntk")
    assert done.returncode == 2
    assert "images/build.sh --pin cntk" in done.stderr
    assert shop.calls() == []


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "missing image"),
        (("caffe",), "unknown image 'caffe'"),
        (("../images/cntk",), "unknown image '../images/cntk'"),
        (("cntk/",), "unknown image 'cntk/'"),
        (("",), "unknown image ''"),
        (("--push", ACR, "--stack", "dev", "all"), "--stack needs --push without a registry"),
        (("--stack",), "--stack needs a value"),
        (("--push", f"https://{ACR}", "all"), "--push needs a host"),
        (("--fast", "all"), "unknown option --fast"),
    ],
)
def test_invalid_call_is_refused_before_any_build(
    shop: Workshop, args: tuple[str, ...], problem: str
) -> None:
    done = shop.run(*args)
    assert done.returncode == 2
    assert problem in done.stderr
    assert shop.calls() == []


def podman_builds() -> bool:
    if os.geteuid() != 0 or shutil.which("podman") is None:
        return False
    done = subprocess.run(["podman", "info"], capture_output=True, check=False, timeout=200)
    return done.returncode == 0


@pytest.mark.slow
def test_podman_builds_and_then_skips_an_image_from_scratch(tmp_path: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None or not podman_builds():
        pytest.skip("needs podman, root and a static busybox")
    folder = tmp_path / "images"
    (folder / "tiny").mkdir(parents=True)
    shutil.copy(IMAGES / "build.sh", folder)
    shutil.copytree(IMAGES / "shared", folder / "shared")
    shutil.copy(busybox, folder / "tiny" / "busybox")
    (folder / "versions.env").write_text("TINY_BASE=scratch\nTINY_DIGEST=\n")
    (folder / "tiny" / "Containerfile").write_text(
        "ARG BASE\nFROM ${BASE}\nCOPY tiny/busybox /bin/\n"
        'RUN ["/bin/busybox", "sh", "-c", "test -x /bin/busybox"]\n'
    )
    shop = Workshop(folder, Path(os.environ["PATH"].split(":")[0]), tmp_path)
    environment = {
        "PATH": os.environ["PATH"],
        "RUNNER_IMAGES_PREFIX": "localhost/runner-test",
        "RUNNER_IMAGES_BUILD_FLAGS": "--isolation=chroot",
    }
    (name,) = shop.ok("--engine", "podman", "tiny", **environment)
    try:
        again = shop.run("--engine", "podman", "tiny", **environment)
        assert again.stdout.split() == [name]
        assert "already exists" in again.stderr
        (folder / "tiny" / "Containerfile").write_text(
            'ARG BASE\nFROM ${BASE}\nCOPY tiny/busybox /bin/\nRUN ["/bin/busybox", "false"]\n'
        )
        broken = shop.run("--engine", "podman", "tiny", **environment)
        assert broken.returncode == 1
        assert "error: tiny: the build of localhost/runner-test/tiny:" in broken.stderr
    finally:
        subprocess.run(["podman", "rmi", "--force", name], capture_output=True, check=False)
