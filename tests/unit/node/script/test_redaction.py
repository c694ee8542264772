from __future__ import annotations

import base64
import json
import logging
import random
import textwrap
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from runner.node.script import shipper as lines_module
from runner.node.script.redaction import RedactingFormatter, Redactor
from runner.node.script.shipper import FileSource
from tests.unit.node.agent_task import Task

SECRET = 'pa$$ w0rd/+="\\ü'
TOKEN = "ghp_0123456789abcdef"


def knowing(*values: str) -> Redactor:
    redactor = Redactor()
    for value in values:
        redactor.add(value)
    return redactor


@pytest.mark.parametrize(
    "write",
    [
        str,
        lambda v: quote(v, safe=""),
        quote,
        quote_plus,
        lambda v: quote(v, safe="").lower(),
        lambda v: json.dumps(v)[1:-1],
        lambda v: repr(v)[1:-1],
        lambda v: base64.b64encode(v.encode()).decode(),
        lambda v: base64.urlsafe_b64encode(v.encode()).decode().rstrip("="),
    ],
)
def test_value_is_redacted_in_all_encodings(write: Callable[[str], str]) -> None:
    value = SECRET.lower()
    assert knowing(value).text(f"token={write(value)}!") == "token=***!"


@pytest.mark.parametrize("user", ["", "a", "ab", "abc"])
def test_value_inside_base64_is_redacted(user: str) -> None:
    header = base64.b64encode(f"{user}:{TOKEN}:{user}".encode()).decode()
    shown = knowing(TOKEN).text(header)
    assert "***" in shown
    assert len(shown) < 20


def test_every_line_of_a_key_is_redacted() -> None:
    key = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7\nc2VjcmV0IGtleSBsaW5l\n-----END KEY-----\n"
    shown = knowing(key).text("\n".join(f"  {line}" for line in key.splitlines()))
    assert shown.split() == ["***"] * 4


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("width", [64, 76])
def test_base64_with_line_breaks_is_redacted(width: int, end: str) -> None:
    redactor = Redactor()
    value = "".join(f"{number:x}." for number in range(1000, 1100))
    redactor.add(value)
    text = base64.b64encode((value + end).encode()).decode()
    shown = redactor.text("\n".join(textwrap.wrap(text, width)))
    assert len(shown.replace("***", "").strip()) <= 6
    assert shown.count("***") >= 5


def test_short_values_are_ignored() -> None:
    assert knowing("abc", "", "12345").text("abc 12345") == "abc 12345"


def test_overlapping_values_are_redacted_as_one() -> None:
    redactor = knowing("secret-one", "secret-one-and-more", "more-than-this")
    assert redactor.text("a secret-one b") == "a *** b"
    assert redactor.text("a secret-one-and-more b") == "a *** b"
    assert redactor.text("a secret-one-and-more-than-this b") == "a *** b"


def test_signature_of_a_sas_is_redacted() -> None:
    redactor = Redactor()
    redactor.add_sas("sv=2021&sp=rw&sig=abc%2Bdef%2Fghi%3D")
    for text in ("sig=abc%2Bdef%2Fghi%3D", "abc+def/ghi=", "abc%2bdef%2fghi%3d"):
        assert "def" not in redactor.text(f"x {text} y")


def test_repr_shows_no_secret() -> None:
    assert TOKEN not in repr(knowing(TOKEN))


def test_traceback_in_the_agents_log_has_no_secret() -> None:
    formatter = RedactingFormatter(knowing(TOKEN), "%(message)s", "")
    try:
        raise ValueError(f"cannot use {TOKEN}")
    except ValueError as err:
        info = (type(err), err, err.__traceback__)
        record = logging.LogRecord("x", 40, "", 1, "wrong %s", (TOKEN,), info)
    shown = formatter.format(record)
    assert TOKEN not in shown
    assert shown.count("***") >= 2


def shipped(source: FileSource, lose: Callable[[bytes], int] = lambda _: 0) -> bytes:
    """Return the blob; `lose` returns how many bytes storage loses after each block."""
    arrived = b""
    while block := source.peek():
        source.advance()
        arrived += block
        if lost := lose(arrived):
            source.rewind(lost)
            arrived = arrived[:-lost]
    return arrived


@pytest.mark.parametrize("seed", range(60))
def test_secret_across_blocks_is_redacted(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(lines_module, "MAX_APPEND_BYTES", chance.randint(20, 60))
    redactor = knowing("abcabcab", "secret", "bcsecr")
    words = ["abcabcab", "secret", "bcsecr", "abc", "sec", "\n", "xyz", "ab", "s", "abcabcabcab"]
    text = "".join(chance.choices(words, k=400)).encode()
    log = tmp_path / "log"
    log.write_bytes(text)
    source = FileSource(log, redactor=redactor)
    source.freeze()
    times = [20]

    def lose(arrived: bytes) -> int:
        times[0] -= 1
        return chance.randint(0, len(arrived)) if times[0] > 0 else 0

    clean = shipped(source, lose)
    assert not any(word in clean for word in (b"abcabcab", b"secret", b"bcsecr"))
    # The ends of blocks affect only how overlapping secrets are merged.
    assert clean.count(b"xyz") == text.count(b"xyz")
    assert clean.count(b"\n") == text.count(b"\n")


def test_log_without_secrets_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_APPEND_BYTES", 7)
    chance = random.Random(5)
    text = bytes(chance.choices(b"abcgh_p\n", k=500))
    log = tmp_path / "log"
    log.write_bytes(text)
    source = FileSource(log, redactor=knowing(TOKEN))
    source.freeze()
    losses = iter([3, 0, 0, 11, 40, 0, 1])
    assert shipped(source, lambda arrived: min(next(losses, 0), len(arrived))) == text


def test_partial_secret_waits_for_the_rest(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"token: {TOKEN[:9]}")
    source = FileSource(log, redactor=knowing(TOKEN))
    assert source.peek() == b"token: "
    source.advance()
    assert source.peek() == b""
    with log.open("a") as out:
        out.write(f"{TOKEN[9:]}\nnext: {TOKEN[:4]}")
    assert source.peek() == b"***\nnext: "
    source.advance()
    source.freeze()
    assert source.peek() == TOKEN[:4].encode()


def test_metrics_of_stdout_contain_no_secret(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"loss=0.5 {TOKEN}\n")
    seen: list[bytes] = []
    FileSource(log, seen.append, knowing(TOKEN)).peek()
    assert seen == [b"loss=0.5 ***\n"]


PRINTING = """
import base64, json, os, sys, urllib.parse
token = os.environ["TOKEN"]
print("token:", token)
print(base64.b64encode(token.encode()).decode(), file=sys.stderr)
print(urllib.parse.quote(token, safe=""), json.dumps({"t": token}))
with open(os.environ["RUNNER_METRICS_FILE"], "a") as f:
    print(json.dumps({"step": 1, "loss": 0.5, token: 1.0}), file=f)
storage = [name for name in os.environ if name in ("RUNNER_STORAGE", "RUNNER_SECRETS")]
assert not storage, storage
raise SystemExit(int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3])
def test_printed_secret_never_leaves_the_node(task: Task, code: int) -> None:
    task.secrets = {"values": {"TOKEN": SECRET}}
    command = ["python", "train.py", str(code), SECRET]
    task.submit(PRINTING, command=command, secrets=["TOKEN"])
    assert task.run() == code
    assert "token: ***\n" in task.text("logs/stdout.txt")
    assert task.text("logs/stderr.txt").startswith("***\n")
    assert {line["name"] for line in task.lines("metrics.jsonl")} == {"loss", "***"}
    left = {
        name: blob.data.decode()
        for name, blob in task.service.blobs.items()
        if not name.endswith(
            "run.json"
        )  # its command contains it, because this test wrote it there
    }
    for name, text in {**left, "the task's stdout": task.output}.items():
        for form in (SECRET, quote(SECRET, safe=""), json.dumps(SECRET)[1:-1]):
            assert form not in text, name
        assert base64.b64encode(SECRET.encode()).decode() not in text, name


def test_missing_program_named_like_a_secret_is_redacted(task: Task) -> None:
    task.secrets = {"values": {"TOKEN": TOKEN}}
    task.submit("", command=[TOKEN], secrets=["TOKEN"])
    assert task.run() == 127
    assert task.json("result.json")["message"].startswith("*** was not found")


@pytest.mark.slow
def test_storage_signature_printed_by_script_is_redacted(task: Task) -> None:
    task.submit("print('sig=secret-signature')")
    assert task.run() == 0
    assert task.text("logs/stdout.txt") == "sig=***\n"


@pytest.mark.slow
def test_shell_file_names_the_secret_without_value(task: Task) -> None:
    task.secrets = {"values": {"TOKEN": TOKEN}}
    task.submit("import os; print(len(os.environ['TOKEN']))", secrets=["TOKEN"])
    assert task.run() == 0
    assert task.text("logs/stdout.txt") == f"{len(TOKEN)}\n"
    text = (task.folder / "task-0/wd/logs/environment.sh").read_text()
    assert TOKEN not in text
    assert "# TOKEN is omitted: it is a secret" in text


def test_invalid_secrets_are_not_printed(task: Task) -> None:
    task.settings = {"RUNNER_SECRETS": '{"values": ["' + TOKEN}
    task.submit("print(1)")
    assert task.run() == 1
    assert "invalid RUNNER_SECRETS" in task.output
    assert TOKEN not in task.output
