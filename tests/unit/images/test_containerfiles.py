"""Requirements of every image, checked without a build."""

from __future__ import annotations

import ast
import re

import pytest

from tests.unit.images.folders import FRAMEWORKS, IMAGES, instructions, versions

CURRENT = {"ca-certificates"}  # trust must not stay as it was
EACH = pytest.mark.parametrize("framework", FRAMEWORKS)


def test_the_five_frameworks_have_an_image() -> None:
    assert FRAMEWORKS == ["chainer", "cntk", "keras-jax", "pytorch", "tensorflow"]


@EACH
def test_every_stage_starts_from_the_pinned_base(framework: str) -> None:
    steps = instructions(framework)
    assert steps[0].word == "ARG"
    assert steps[0].text == "BASE", "no default: build.sh gives it, with its digest"
    starts = [step.text.split()[0] for step in steps if step.word == "FROM"]
    assert starts
    assert set(starts) == {"${BASE}"}


@EACH
def test_every_system_package_has_a_version(framework: str) -> None:
    commands = [step.text for step in instructions(framework) if step.word == "RUN"]
    installed = [
        word
        for command in commands
        for part in re.findall(r"apt-get install ([^&]+)", command)
        for word in part.split()
        if not word.startswith("-")
    ]
    assert installed
    loose = {word for word in installed if not re.fullmatch(r"[a-z0-9.+-]+=[0-9:.]+-\*", word)}
    assert loose <= CURRENT


@EACH
def test_every_python_package_has_a_version_and_a_hash(framework: str) -> None:
    text = (IMAGES / framework / "requirements.txt").read_text(encoding="utf-8")
    joined = text.replace("\\\n", " ")
    packages = [line for line in joined.splitlines() if line and line[0] != "#"]
    assert packages
    for line in packages:
        assert re.fullmatch(
            r"[a-z0-9.-]+==[0-9][0-9a-z.+]*( *;[^-]+)?( +--hash=sha256:[0-9a-f]{64})+ *", line
        ), line
    (pip,) = [s.text for s in instructions(framework) if "pip install" in s.text]
    assert "--require-hashes" in pip
    assert "--no-deps" in pip


@EACH
def test_copied_files_exist_and_nothing_is_downloaded(framework: str) -> None:
    steps = instructions(framework)
    assert not [step for step in steps if step.word == "ADD"]
    copies = [step.text.split() for step in steps if step.word == "COPY"]
    sources = [s for words in copies if not words[0].startswith("--from") for s in words[:-1]]
    assert f"{framework}/smoke_test.py" in sources
    for source in sources:
        assert (IMAGES / source).is_file(), source
        assert source.split("/")[0] in ("shared", framework), "not in the tag's hash"
    assert not re.search(r"https?://|curl|wget", " ".join(step.text for step in steps))


@EACH
def test_the_last_step_runs_the_smoke_test_as_an_ordinary_user(framework: str) -> None:
    *_, user, last = instructions(framework)
    assert (user.word, user.text) == ("USER", "runner")
    assert last.word == "RUN"
    assert ast.literal_eval(last.text) == ["python", f"/opt/images/{framework}/smoke_test.py"]


@EACH
def test_every_node_user_has_a_home_and_the_gpu(framework: str) -> None:
    said = " ".join(step.text for step in instructions(framework) if step.word == "ENV")
    assert "HOME=/tmp" in said
    assert "NVIDIA_VISIBLE_DEVICES=all" in said
    assert re.search(r'NVIDIA_REQUIRE_CUDA="cuda>=\d+\.\d"', said)


def test_each_framework_has_exactly_one_base() -> None:
    names = {framework.upper().replace("-", "_") for framework in FRAMEWORKS}
    assert set(versions()) == {f"{n}_{part}" for n in names for part in ("BASE", "DIGEST")}
    for name, value in versions().items():
        if name.endswith("_BASE"):
            assert re.fullmatch(r"docker\.io/library/[a-z]+:[0-9.]+", value), value
        else:
            assert re.fullmatch(r"(sha256:[0-9a-f]{64})?", value), value


def test_the_keras_image_has_the_packages_of_the_mnist_recipe() -> None:
    """The recipe then installs nothing on the node."""

    def frozen(text: str) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9.-]+)==([^\s;\\]+)", text, re.MULTILINE))

    recipe = IMAGES.parent / "runner" / "recipes" / "mnist" / "requirements-gpu.txt"
    wanted = frozen(recipe.read_text(encoding="utf-8"))
    found = frozen((IMAGES / "keras-jax" / "requirements.txt").read_text(encoding="utf-8"))
    assert wanted
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("shared/smoke.py", (3, 5)),
        ("cntk/smoke_test.py", (3, 5)),
        ("chainer/smoke_test.py", (3, 8)),
    ],
)
def test_scripts_for_an_old_python_have_its_syntax(file: str, version: tuple[int, int]) -> None:
    source = (IMAGES / file).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=version)
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    assert strings == [], "f-strings came with 3.6, and ast does not mind them"
