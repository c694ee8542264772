"""The files of the emulator's image and of its examples, checked without a build."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from tests.unit.images.folders import instructions_of
from tests.unit.source_tree import ROOT, text_of

FOLDER = ROOT / "batch_emulator"
STEPS = instructions_of(FOLDER / "Containerfile")
EXAMPLES = ROOT / "examples" / "testcontainers"


def of(word: str) -> list[str]:
    return [step.text for step in STEPS if step.word == word]


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", text, re.MULTILINE))


def test_every_package_has_a_hash_and_the_version_of_the_tests() -> None:
    text = text_of(FOLDER / "image.lock")
    found, tested = pins(text), pins(text_of(ROOT / "requirements" / "dev.lock"))
    assert {name: tested.get(name) for name in found} == found
    assert "://" not in text
    blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    (pip,) = [step for step in of("RUN") if "pip install" in step]
    assert "--require-hashes" in pip
    assert "--only-binary :all:" in pip


def test_the_emulator_has_five_dependencies_and_the_image_no_others() -> None:
    declared = tomllib.loads(text_of(FOLDER / "pyproject.toml"))["project"]["dependencies"]
    names = {re.split(r"[>=<]", each)[0] for each in declared}
    assert names == {"httptools", "httpx", "psutil", "starlette", "uvicorn"}
    needed = {"anyio", "certifi", "click", "h11", "httpcore", "idna", "typing-extensions"}
    assert pins(text_of(FOLDER / "image.lock")).keys() == names | needed


def test_it_runs_as_an_ordinary_user_with_a_health_check() -> None:
    (user,) = of("USER")
    assert re.fullmatch(r"[1-9]\d*", user), "a number, which Kubernetes can compare"
    after = [step.word for step in STEPS[[step.word for step in STEPS].index("USER") :]]
    assert {"RUN", "COPY"}.isdisjoint(after)
    (check,) = of("HEALTHCHECK")
    assert "/_emulator/health" in check
    assert of("VOLUME") == ["/state"]
    assert of("EXPOSE") == ["8900"]


def test_it_has_no_key() -> None:
    (entry,) = of("ENTRYPOINT")
    words = json.loads(entry)
    assert words[:2] == ["tini", "--"]
    assert "--expose" in words
    assert not [word for word in words if word.startswith("--key")]
    assert "KEY" not in " ".join(of("ENV") + of("ARG"))


def test_base_is_an_argument_and_nothing_is_added_from_elsewhere() -> None:
    assert STEPS[0].word == "ARG"
    assert STEPS[0].text.startswith("BASE=")
    assert of("FROM") == ["${BASE}"]
    assert not of("ADD")
    assert not re.search(r"https?://|curl|wget", " ".join(of("RUN")))


def test_files_for_developers_are_left_out() -> None:
    left_out = set(text_of(FOLDER / ".dockerignore").split())
    assert {"**/__pycache__", "*.md", "Containerfile", "pyproject.toml"} <= left_out
    assert "image.lock" not in left_out


@pytest.mark.parametrize("language", ["dotnet", "java", "node", "python"])
def test_example_waits_for_the_health_and_reads_the_output(language: str) -> None:
    files = [path for path in (EXAMPLES / language).rglob("*") if path.is_file()]
    text = "\n".join(map(text_of, files))
    for said in ("/_emulator/health", "BATCH_EMULATOR_KEY", "BATCH_EMULATOR_IMAGE", "stdout.txt"):
        assert said in text, said
    assert not re.search(r'KEY",? *[=:,]? *"[A-Za-z0-9+/]{20}', text), "a key in the sources"
    urls = re.findall(r"https?://(?![${\"]|maven\.apache\.org|www\.w3\.org)\S+", text)
    assert not urls
    assert (EXAMPLES / language / "README.md").is_file()
    assert f"(testcontainers/{language}/README.md)" in text_of(ROOT / "examples" / "README.md")
