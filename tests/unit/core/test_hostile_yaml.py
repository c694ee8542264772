"""Files that exhaust a YAML parser: each is read or refused within a second and 200 MB.

One program forks for each file, so that time and memory are those of that file alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

CPU_S = 1.0
MEMORY_MB = 200

PROGRAM = """
import json, os, resource, sys
from pathlib import Path
import ruamel.yaml, ruamel.yaml.comments, ruamel.yaml.error, ruamel.yaml.scanner
from runner.core.recipe.file import load_recipe
from runner.core.recipe.submit_file import load_submit_file
from runner.core.settings import load_settings
from runner.protocol.errors import RunnerError

def read(path):
    if path.name == "runner.yaml":
        load_settings({}, cwd=path.parent, env={"RUNNER_HOME": str(path.parent)})
    elif path.name == "submit.yaml":
        load_submit_file(path)
    else:
        load_recipe(str(path.parent), cwd=path.parent)

for path in map(Path, sys.argv[1:]):
    reader, writer = os.pipe()
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        before = resource.getrusage(resource.RUSAGE_SELF)
        try:
            read(path)
            found = ["read", ""]
        except RunnerError as err:
            found = [err.code, err.what]
        except BaseException as err:
            found = ["crashed", repr(err)[:200]]
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        answer = [found[0], found[1][:2000], used, after.ru_maxrss / 1024]
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 1 << 16) or b'["killed", "", 99, 0]'
    os.waitpid(child, 0)
    os.close(reader)
    print(json.dumps([str(path), *json.loads(answer)]))
"""

RECIPE = "command: python train.py\n"
SUBMIT = "tasks:\n"


def multiplied(key: str, levels: int = 9, width: int = 9) -> str:
    """Return a "billion laughs" document below a key: each level repeats the previous one."""
    lines = [f"{key}:", "  a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    for level in range(1, levels + 1):
        lines.append(f"  a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines) + "\n"


def merged(levels: int = 40) -> str:
    lines = ["params:", "  m0: &m0 {k0: 1}"]
    for level in range(1, levels + 1):
        keys = f"<<: [*m{level - 1}, *m{level - 1}], k{level}: *m{level - 1}"
        lines.append(f"  m{level}: &m{level} {{{keys}}}")
    return "\n".join(lines) + "\n"


# File names, texts, and whether they are harmless. Errors name a line unless stated otherwise.
FILES: dict[str, tuple[str, str | bytes, bool]] = {
    "aliases in params": ("train.yaml", RECIPE + multiplied("params"), False),
    "aliases in env": ("train.yaml", RECIPE + multiplied("env"), False),
    "aliases in inputs": ("train.yaml", RECIPE + multiplied("inputs"), False),
    "aliases in a submit file": ("submit.yaml", multiplied("tasks"), False),
    "aliases in settings": ("runner.yaml", multiplied("pool"), False),
    "aliases as keys": ("train.yaml", RECIPE + "a: &a [1]\n? *a\n: 1\n", False),
    "merge keys that multiply": ("train.yaml", RECIPE + merged(), False),
    "merge of itself": ("train.yaml", "params: &p\n  <<: *p\n", False),
    "list of itself": ("train.yaml", "params: {a: &a [*a]}\n", False),
    "deep brackets": ("train.yaml", f"params: {'[' * 100_000}\n", False),
    "deep braces": ("train.yaml", f"params: {'{a: ' * 50_000}\n", False),
    "deep lists in a line": ("train.yaml", f"params:\n  {'- ' * 100_000}1\n", False),
    "deep indentation": ("submit.yaml", "".join(f"{' ' * n}a:\n" for n in range(900)), False),
    "deep question marks": ("train.yaml", f"{'? ' * 50_000}1\n", False),
    "long lines of comments": ("train.yaml", RECIPE + ("# " + "c" * 60 + "\n") * 16_000, False),
    "short lines of comments": ("train.yaml", RECIPE + "#\n" * 500_000, False),
    "comments of half the size": ("train.yaml", RECIPE + ("#" * 40 + "\n") * 12_000, True),
    "one long comment": ("train.yaml", RECIPE + "#" * 500_000, False),
    "comments after values": ("train.yaml", "params:\n" + "  a: 1 # x\n" * 25_000, False),
    "empty lines": ("train.yaml", RECIPE + "\n" * 1_000_000, False),
    "spaces": ("train.yaml", RECIPE + " " * 500_000, False),
    "a list of 100,000": ("train.yaml", "params:\n  a: [" + "1," * 100_000 + "]\n", False),
    "a list of 100,000 lines": ("submit.yaml", "tasks:\n" + "- a\n" * 100_000, False),
    "19,000 keys": (
        "train.yaml", "params:\n" + "".join(f" a{n}: 1\n" for n in range(19_000)), False,
    ),
    "a long key": ("train.yaml", f"{'k' * 200_000}: 1\n", False),
    "a long value": ("train.yaml", f"command: {'x' * 500_000}\n", False),
    "a huge whole number": ("train.yaml", f"params: {{a: {'9' * 100_000}}}\n", False),
    "a huge hexadecimal number": ("train.yaml", f"timeout: 0x{'f' * 200_000}\n", False),
    "a huge exponent": (
        "train.yaml", RECIPE + "params: {a: 1e999999999, b: 1e-999999999}\n", False,
    ),
    "a sexagesimal number": ("train.yaml", RECIPE + f"params: {{a: {'1:' * 50_000}1}}\n", False),
    "an object of Python": ("train.yaml", "params: !!python/object/apply:os.system [id]\n", False),
    "binary data": ("train.yaml", f"params: {{a: !!binary {'A' * 400_000}}}\n", False),
    "a wrong tag": ("train.yaml", "params: {a: !!float x}\n", False),
    "NUL bytes": ("train.yaml", RECIPE + "params: {a: 'x\0y'}\n", False),
    "bytes that are not UTF-8": ("train.yaml", b"command: \xff\xfe\n", False),
    "a mark of byte order": ("train.yaml", "\ufeff" + RECIPE, True),
    "UTF-16": ("train.yaml", RECIPE.encode("utf-16"), False),
    "tabs": ("train.yaml", "params:\n\ta: 1\n", False),
    "a key twice": ("train.yaml", "command: a\ncommand: b\n", False),
    "a wrong date": ("train.yaml", RECIPE + "params: {a: 2026-13-45T99:99:99}\n", False),
    "an octal number": ("train.yaml", RECIPE + "params: {a: 0o777, b: 0777}\n", True),
    "directives": ("train.yaml", "%TAG ! tag:x,2000:\n" * 20_000 + "---\na: 1\n", False),
    "many documents": ("train.yaml", "---\na: 1\n" * 10_000, False),
    "many anchors": (
        "train.yaml", "params:\n" + "".join(f"  a{n}: &b{n} 1\n" for n in range(15_000)), False,
    ),
    "quotes without an end": ("train.yaml", "command: '" + "x\n" * 20_000, False),
    "escapes": ("train.yaml", 'command: "' + "\\u0041" * 8_000 + '"\n', True),
    "folded text": ("train.yaml", "description: >\n" + "  x\n\n" * 9_000, True),
    "lines of a command": ("train.yaml", "command: >\n" + "  x\n\n" * 9_000, False),
    "nothing": ("train.yaml", "", True),
}  # fmt: skip
_NO_LINE = {"a wrong tag", "a wrong date"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, float, float]]:
    paths: dict[str, str] = {}
    for number, (name, (file, text, _)) in enumerate(FILES.items()):
        folder = tmp_path_factory.mktemp(f"yaml{number}")
        path = folder / file
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        (folder / "train.py").touch()
        paths[str(path)] = name
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *paths],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    lines: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    return {paths[path]: (code, what, cpu, memory) for path, code, what, cpu, memory in lines}


@pytest.mark.parametrize("name", FILES)
def test_hostile_file_is_refused_at_once(
    answers: dict[str, tuple[str, str, float, float]], name: str
) -> None:
    file, _, is_harmless = FILES[name]
    code, what, cpu_s, memory_mb = answers[name]
    assert (cpu_s < CPU_S, memory_mb < MEMORY_MB) == (True, True), (cpu_s, memory_mb)
    if is_harmless:
        assert code == "read", what
        return
    assert code.startswith("R-"), what
    assert f"{file}:" in what if name not in _NO_LINE else file in what
    assert len(what) < 1000
