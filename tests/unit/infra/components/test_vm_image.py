"""The resources of the image as the engine gets them; the template follows the scripts."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from runner.protocol.errors import RunnerError
from runner_infra.config.naming import Names
from runner_infra.config.stack import ImageConfig
from runner_infra.planning import image_source
from runner_infra.planning.image_source import (
    ImageFile,
    delivery_script,
    load_files,
    load_versions,
    template_steps,
)
from tests.unit.infra import cloud, image_machine
from tests.unit.infra.oracle import validate
from tests.unit.infra.recording import Recording, record

TAGS = {"stack": "dev", "made-by": "runner"}


def declared(
    config: ImageConfig | None = None,
    *,
    tags: Mapping[str, str] = TAGS,
    location: str = "westeurope",
) -> Recording:
    def declare() -> Mapping[str, Any]:
        import pulumi

        from runner_infra.components.context import StackContext
        from runner_infra.components.vm_image import ImageFactory

        names = Names("dev", cloud.SUBSCRIPTION)
        group = f"/subscriptions/{cloud.SUBSCRIPTION}/resourceGroups/rg"
        context = StackContext(
            names=names,
            location=location,
            tags=tags,
            resource_group_name=pulumi.Output.from_input("rg"),
            resource_group_id=pulumi.Output.from_input(group),
        )
        made = ImageFactory("image", context, config or ImageConfig())
        return {
            "definition": made.definition_id,
            "latest": made.version_id("latest"),
            "pinned": made.version_id("1.0.3"),
            "template": made.template_name,
            "identity": made.identity.id,
        }

    return record(declare)


@pytest.fixture(scope="module")
def stack() -> Recording:
    return declared(ImageConfig(replicate_to=("northeurope", "West Europe", "northeurope")))


def template(recording: Recording) -> dict[str, Any]:
    return recording.one("virtualmachineimages:VirtualMachineImageTemplate").inputs


def test_all_resources_belong_to_the_component(stack: Recording):
    (component,) = stack.components
    assert component.type == "runner:infra:ImageFactory"
    assert len(stack.resources) == 5
    assert {resource.parent for resource in stack.resources} == {component.urn}
    tagged = [r for r in stack.resources if r.kind != "authorization:RoleAssignment"]
    assert [r.inputs["tags"] for r in tagged] == [TAGS] * 4


def test_installed_sdk_accepts_every_key_type_and_value(stack: Recording):
    found = {r.kind: validate(r.type, r.name, r.inputs) for r in stack.resources}
    assert len(found) == 5
    assert [violation for each in found.values() for violation in each] == []


def test_definition_meets_the_needs_of_batch_and_trusted_launch(stack: Recording):
    inputs = stack.one("compute:GalleryImage").inputs
    assert (inputs["osType"], inputs["osState"]) == ("Linux", "Generalized")
    assert (inputs["hyperVGeneration"], inputs["architecture"]) == ("V2", "x64")
    assert inputs["features"] == [{"name": "SecurityType", "value": "TrustedLaunchSupported"}]
    assert inputs["endOfLifeDate"] == f"{load_versions()['END_OF_LIFE']}T00:00:00Z"
    assert date.fromisoformat(inputs["endOfLifeDate"][:10]) > date(2027, 6, 30)
    assert stack.exports["latest"] == stack.exports["definition"]
    assert stack.exports["pinned"] == f"{stack.exports['definition']}/versions/1.0.3"


def test_identity_can_only_publish_to_this_gallery(stack: Recording):
    identity = stack.exports["identity"]
    assert template(stack)["identity"] == {
        "type": "UserAssigned",
        "userAssignedIdentities": [identity],
    }
    role = stack.one("authorization:RoleAssignment")
    assert role.inputs["scope"].endswith("/providers/Microsoft.Compute/galleries/runner_dev")
    assert role.inputs["roleDefinitionId"].endswith("/85a2d0d9-2eba-4c9c-b355-11c2cc0788ab")
    made = stack.one("virtualmachineimages:VirtualMachineImageTemplate")
    assert role.urn in made.dependencies, "a build before the role is there fails at its end"


def test_template_builds_the_pinned_image_on_a_gpu_only_on_demand(stack: Recording):
    inputs = template(stack)
    assert inputs["source"] == {
        "type": "PlatformImage",
        "publisher": "Canonical",
        "offer": "ubuntu-24_04-lts",
        "sku": "server",
        "version": load_versions()["UBUNTU_IMAGE_VERSION"],
    }
    assert inputs["source"]["version"] != "latest"
    assert inputs["vmProfile"]["vmSize"] == "Standard_NC4as_T4_v3"
    assert inputs["autoRun"] == {"state": "Disabled"}
    assert inputs["errorHandling"] == {
        "onCustomizerError": "cleanup",
        "onValidationError": "cleanup",
    }
    assert 0 < inputs["buildTimeoutInMinutes"] <= 960


def test_only_verified_images_are_distributed(stack: Recording):
    validate = template(stack)["validate"]
    assert validate["continueDistributeOnFailure"] is False
    assert validate["sourceValidationOnly"] is False
    (check,) = validate["inVMValidations"]
    assert check["inline"] == ["sudo /opt/runner/image/verify.sh"]


def test_versions_increase_and_are_replicated_once_per_region(stack: Recording):
    (distributed,) = template(stack)["distribute"]
    assert distributed["galleryImageId"] == stack.exports["definition"]
    assert distributed["versioning"] == {"scheme": "Latest", "major": 1}
    assert [r["name"] for r in distributed["targetRegions"]] == ["westeurope", "northeurope"]
    assert distributed["artifactTags"]["runner-node-agent"] == "batch.node.ubuntu 24.04"


def test_the_steps_of_provision_are_the_customizers_in_order(stack: Recording, tmp_path: Path):
    customizers = template(stack)["customize"]
    listed = image_machine.Machine(tmp_path).run("provision.sh", "--list").stdout.split()
    assert [c["name"] for c in customizers] == ["files", *listed]
    assert {c["type"] for c in customizers} == {"Shell"}
    assert customizers[3]["inline"] == [f"sudo /opt/runner/image/provision.sh {listed[2]}"]


def test_template_is_small_and_free_of_packer_syntax(stack: Recording):
    lines = [line for c in template(stack)["customize"] for line in c["inline"]]
    assert sum(map(len, lines)) < 128 * 1024
    assert not [line for line in lines if "{{" in line or "${" in line]
    assert max(map(len, lines)) <= 1000


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum here")
def test_delivered_files_equal_the_folder(tmp_path: Path):
    target = tmp_path / "image"
    done = deliver(load_files(), target)
    assert (done.returncode, done.stderr) == (0, "")
    for file in load_files():
        written = target / file.path
        assert written.read_bytes() == file.content
        assert bool(written.stat().st_mode & 0o111) is file.path.endswith(".sh")
    left_out = {"README.md", ".shellcheckrc"}
    there = {
        str(p.relative_to(image_source.FOLDER))
        for p in image_source.FOLDER.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert {file.path for file in load_files()} == there - left_out


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="there is no sha256sum here")
def test_damaged_file_fails_the_build(tmp_path: Path):
    text = "\n".join(
        delivery_script((ImageFile("a", b"x" * 30), ImageFile("b", b"y")), str(tmp_path))
    )
    broken = text.replace("eHh4", "eHh5", 1)
    assert broken != text
    done = run_shell(broken, tmp_path)
    assert done.returncode != 0
    assert not (tmp_path / "b").exists()


def deliver(files: tuple[ImageFile, ...], target: Path) -> subprocess.CompletedProcess[str]:
    return run_shell("\n".join(delivery_script(files, str(target))), target.parent)


def run_shell(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run inline lines like Packer: as one script of /bin/sh -e. `sudo` has no effect here."""
    stub = folder / "bin"
    stub.mkdir()
    (stub / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (stub / "sudo").chmod(0o755)
    return subprocess.run(
        ["/bin/sh", "-e", "-c", text],
        capture_output=True,
        text=True,
        env={"PATH": f"{stub}:/usr/bin:/bin"},
        check=False,
    )


def test_the_same_stack_has_the_same_template(stack: Recording):
    again = declared(ImageConfig(replicate_to=("northeurope", "West Europe", "northeurope")))
    assert again.exports["template"] == stack.exports["template"]
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", stack.exports["template"])


@pytest.mark.parametrize(
    "change",
    [
        {"config": ImageConfig(build_vm_size="Standard_NC8as_T4_v3")},
        {"config": ImageConfig(replicate_to=("northeurope",))},
        {"tags": {"stack": "other"}},
        {"location": "northeurope"},
    ],
    ids=["size", "regions", "tags", "location"],
)
def test_every_change_of_an_input_changes_the_template(change: dict[str, Any]):
    assert declared(**change).exports["template"] != declared().exports["template"]


@pytest.mark.parametrize("file", ["versions.env", "verify.sh", "steps/30-driver.sh"])
def test_change_of_any_script_changes_the_template(file: str, monkeypatch: pytest.MonkeyPatch):
    before = declared().exports["template"]
    known = load_files()
    changed = tuple(replace(f, content=f.content + b"\n") if f.path == file else f for f in known)
    loader: Callable[..., Any] = lambda *_: changed  # noqa: E731
    monkeypatch.setattr("runner_infra.components.vm_image.load_files", loader)
    assert declared().exports["template"] != before


def test_readme_does_not_change_the_template(tmp_path: Path):
    folder = tmp_path / "custom_image"
    shutil.copytree(image_source.FOLDER, folder)
    before = image_source.scripts_hash(folder)
    (folder / "README.md").write_text("other words")
    assert image_source.scripts_hash(folder) == before == image_source.scripts_hash()
    (folder / "uv.txt").write_text("uv==0.0.1")
    assert image_source.scripts_hash(folder) != before


def test_versions_are_parsed_like_in_bash():
    bash = image_machine.versions()
    assert {name: bash[name] for name in load_versions()} == load_versions()
    assert len(load_versions()) >= 20


@pytest.mark.parametrize("line", ["A=$HOME", "A=b c", "A b", "A='b'", 'A="$(rm)"', "=b", "A=b;c"])
def test_value_with_bash_syntax_is_refused(tmp_path: Path, line: str):
    (tmp_path / "versions.env").write_text(f"GOOD=1\n{line}\n")
    with pytest.raises(RunnerError) as caught:
        load_versions(tmp_path)
    assert caught.value.code == "R-IMAGE-SOURCE"
    assert "versions.env:2" in caught.value.why


def test_folder_without_scripts_is_one_error(tmp_path: Path):
    with pytest.raises(RunnerError) as caught:
        load_files(tmp_path)
    assert caught.value.code == "R-IMAGE-SOURCE"


def test_added_step_becomes_a_customizer():
    files = (*load_files(), ImageFile("steps/95-extra.sh", b""))
    assert [step.name for step in template_steps(files)][-1] == "extra"
