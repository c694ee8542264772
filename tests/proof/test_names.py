"""A hundred random names of all that Linux allows, through everything that handles files.

One script writes them as outputs of a run; they come back byte for byte, name and content, as
downloads, as a model, and as inputs of another run. So do files of `data put` and `data get`, of a
data set and of the code. `PROOF_SEED=N` draws other names.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, new_home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEED = int(os.environ.get("PROOF_SEED", "20261123"))
COUNT = 100
LONGEST = 255
BYTES = [byte for byte in range(1, 256) if byte != ord("/")]
# Names that people use, or that are hard for file systems, shells, URLs, XML, JSON or terminals.
TROUBLE = (
    "model-2026-11-22T08:34:43.bin", "10:30.jpg", "C:", "a\\b", "\\\\server\\share", "dots...",
    " ", " space ", "-rf", "--output=x", "CON", "nul.txt", "aux.", "A", "a", "É", "é", "e\u0301",
    "İ", "i\u0307", "ﬁ", "ß", "SS", "%41", "%2F", "%x5C", "%x25x5C", "%", "%%x0A", "100%.txt",
    "#?&=+;", "'\"`$(id)", "*?[a]", "{x,y}", "new\nline", "tab\t", "\r\n", "\x7f", "\x85",
    "\x1b[31mred\x1b]0;title\x07", "\u2028", "\u202egnp.exe", "\ufeffbom", "\uffff", "\ufffe",
    "\ue000", "\U0001f600", "\U0010ffff", "]]>", "&amp;", "<a>", "x.part", "@last", "~", "rank-1",
    "stdout.txt", "result.json", "漢" * 85, "x" * LONGEST, "\\" * LONGEST, "\x01" * LONGEST,
)  # fmt: skip

WRITE = """
import hashlib, json, os, sys
out = os.fsencode(os.environ["RUNNER_OUTPUT_DIR"])
names = [bytes.fromhex(each) for each in json.load(open("names.json"))]
for number, name in enumerate(names):
    folder = (out, os.path.join(out, b"folder"), b".")[number % 3]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(hashlib.sha256(name).digest() * (number % 5))
"""
READ = """
import hashlib, json, os
found = {}
for variable in ("RUNNER_INPUT_FILES", "RUNNER_DATA_DIR", "RUNNER_INPUT_STORED", "PWD"):
    root = os.fsencode(os.getcwd() if variable == "PWD" else os.environ[variable])
    found[variable] = {
        os.path.relpath(os.path.join(folder, name), root).hex():
            hashlib.sha256(open(os.path.join(folder, name), "rb").read()).hexdigest()
        for folder, _, names in os.walk(root) for name in names
    }
with open(os.path.join(os.environ["RUNNER_OUTPUT_DIR"], "found.json"), "w") as file:
    json.dump(found, file)
"""


def draw(seed: int) -> list[bytes]:
    """Return the names: a third of those that make trouble, the rest of random bytes.

    Hidden files are no part of a data set, and some names are those of caches.
    """
    chance = random.Random(seed)
    names = {name.encode() for name in chance.sample(TROUBLE, COUNT // 3)}
    few = (b"%x25CE.0A\\F", b"aA. ~:", "éÉ\u0301漢\x7f".encode())
    while len(names) < COUNT:
        alphabet = chance.choice((BYTES, BYTES, BYTES, *map(list, few)))
        length = chance.choice((1, 3, chance.randint(1, 60), chance.randint(200, LONGEST)))
        name = bytes(chance.choices(alphabet, k=length))
        if not name.startswith(b".") and not name.endswith((b".pyc", b".DS_Store")):
            names.add(name)
    drawn = sorted(names)
    chance.shuffle(drawn)
    return drawn


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cli]:
    folder = tmp_path_factory.mktemp("names")
    made = Cli(new_home(folder / "home"), folder)
    made.ok("local", "up")
    yield made
    made.ok("local", "down")


def content(number: int, name: bytes) -> bytes:
    return hashlib.sha256(name).digest() * (number % 5)


def place(number: int, name: bytes) -> bytes:
    """Return the output that the script's file becomes."""
    return b"folder/" + name if number % 3 == 1 else name


def tree(folder: Path) -> dict[bytes, bytes]:
    return {
        os.fsencode(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write(folder: Path, files: dict[bytes, bytes]) -> Path:
    for name, data in files.items():
        path = folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def recipe(cli: Cli, name: str, script: str, **files: str) -> Path:
    folder = cli.cwd / name
    folder.mkdir()
    for file, text in {"train.py": script, **files}.items():
        (folder / file.replace("_", ".")).write_text(text)
    return folder


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_any_file_name_survives_runs_models_inputs_and_storage(cli: Cli, seed: int) -> None:
    names = draw(seed)
    expected = {place(number, name): content(number, name) for number, name in enumerate(names)}
    named = json.dumps([name.hex() for name in names])
    writer = recipe(cli, f"writer{seed}", WRITE, names_json=named)
    (writer / "train.yaml").write_text(f"command: python train.py\nmodel: m{seed}\n")

    done = cli.run("train", writer, "--output-dir", cli.cwd / "out")
    assert done.returncode == 0, done.stderr
    assert "\x1b]0;" not in done.stdout + done.stderr
    run_id = cli.json("show", "@last")["run"]["run_id"]
    assert tree(cli.cwd / "out" / run_id) == expected
    listed = [row for row in cli.json("files", "ls", run_id) if row["kind"] == "output"]
    assert len({row["path"] for row in listed}) == len(expected)
    hashes = sorted(hashlib.sha256(data).hexdigest() for data in expected.values())
    assert sorted(row["sha256"] for row in listed) == hashes
    assert not json.loads(json.dumps(cli.json("show", run_id))).get("left_out")
    cli.ok("models", "get", f"m{seed}@1", cli.cwd / f"model{seed}")
    assert tree(cli.cwd / f"model{seed}") == expected

    # One file with the name in the list, and with the name that the script gave it.
    one = next(row for row in listed if "%x" in row["path"] and "*" not in row["path"])
    cli.ok("files", "get", run_id, one["path"], "--output-dir", cli.cwd / f"one{seed}")
    assert len(tree(cli.cwd / f"one{seed}")) == 1

    source = write(cli.cwd / f"source{seed}", expected)
    cli.ok("data", "put", source, f"put{seed}")
    cli.ok("data", "get", f"put{seed}", cli.cwd / f"got{seed}")
    assert tree(cli.cwd / f"got{seed}") == expected
    assert len(cli.json("data", "ls", "-r", f"put{seed}")) == len(expected)

    reader = recipe(cli, f"reader{seed}", READ)
    write(reader, expected)
    inputs = ("--input", f"files=run:{run_id}", "--input", f"stored=blob:data/put{seed}")
    done = cli.run("train", reader, *inputs, "--data", source, "--output-dir", cli.cwd / "out")
    assert done.returncode == 0, done.stderr
    run_id = cli.json("show", "@last")["run"]["run_id"]
    found = json.loads((cli.cwd / "out" / run_id / "found.json").read_text())
    sums = {name.hex(): hashlib.sha256(data).hexdigest() for name, data in expected.items()}
    assert found["RUNNER_INPUT_FILES"] == sums
    assert found["RUNNER_INPUT_STORED"] == sums
    assert found["RUNNER_DATA_DIR"] == sums
    code = {name: sha for name, sha in found["PWD"].items() if name in sums}
    assert code == sums
    assert {row["state"] for row in cli.json("ps", "-a")} == {"succeeded"}


def test_names_too_long_for_a_blob_are_restored(cli: Cli) -> None:
    """The names are folders as deep as Linux allows, and a folder of 250 parts."""
    names = [b"/".join([bytes([65 + i]) * 250] * 14) for i in range(3)]
    names += [b"/".join([b"\x01" * 250] * 3), b"/".join([b"d"] * 300), b"d2/" + b"\xff" * LONGEST]
    expected = {name: name[:3] + name[-1:] for name in names}
    source = write(cli.cwd / "deep", expected)
    cli.ok("data", "put", source, "deep")
    cli.ok("data", "get", "deep", cli.cwd / "back")
    assert tree(cli.cwd / "back") == expected
    script = "import os, shutil\nshutil.copytree(os.environ['RUNNER_DATA_DIR'], "
    script += "os.environ['RUNNER_OUTPUT_DIR'], dirs_exist_ok=True)"
    folder = recipe(cli, "deeper", script)
    done = cli.run("train", folder, "--data", source, "--output-dir", cli.cwd / "deep-out")
    assert done.returncode == 0, done.stderr
    run_id = cli.json("show", "@last")["run"]["run_id"]
    assert tree(cli.cwd / "deep-out" / run_id) == expected
    again = cli.run(
        "retry", run_id
    )  # it succeeded, so nothing is retried, but its data is looked up
    assert "R-RETRY-STATE" in again.stderr
    cli.ok("reproduce", run_id)
