"""`--host`, `--expose` and the key that a port needs which other machines reach."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from batch_emulator.emulator import EmulatorSettings
from batch_emulator.options import OptionError, parser, settings_of
from batch_emulator.server import bind, url_of

STRONG = base64.b64encode(bytes(range(64))).decode()
AZURITE = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
ALL = "0.0.0.0"


def settings(*words: str) -> EmulatorSettings:
    given = parser().parse_args(["--account", "a", "--data-dir", "d", *words])
    return settings_of(given, "http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEY", "KEY_FILE", "STORAGE_KEY"):
        monkeypatch.delenv(f"BATCH_EMULATOR_{name}", raising=False)


def test_only_exposed_settings_are_exposed() -> None:
    assert settings("--host", ALL, "--expose", "--key", STRONG).exposed
    assert not settings("--key", "YQ==").exposed
    assert not settings("--host", "::1", "--key", "YQ==").exposed


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (("--host", ALL, "--key", STRONG), "expected a loopback", "or add --expose"),
        (("--host", "::", "--key", STRONG), "expected a loopback", "or add --expose"),
        (("--host", "10.0.0.1", "--key", STRONG), "expected a loopback", "or add --expose"),
        (("--host", "example.org", "--key", STRONG), "expected a loopback", "or add --expose"),
        (("--expose", "--key", STRONG), "no effect with --host 127.0.0.1", "add --host"),
        (("--expose", "--host", ALL), "missing account key", "export BATCH_EMULATOR_KEY="),
        (("--expose", "--host", ALL, "--key", ""), "missing account key", "remove --key"),
        (("--expose", "--host", ALL, "--key", "YQ=="), "1 bytes of the 32", "export BATCH"),
        (("--expose", "--host", ALL, "--key", AZURITE), "published default", "export BATCH"),
    ],
)
def test_unsafe_exposure_is_refused(words: tuple[str, ...], what: str, fix: str) -> None:
    with pytest.raises(OptionError) as refused:
        settings(*words)
    assert what in refused.value.text
    assert fix in refused.value.text.partition("fix: ")[2]


@pytest.mark.parametrize("key", ["YQ==", AZURITE])
def test_exposed_shares_need_a_key_of_their_own(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("BATCH_EMULATOR_STORAGE_KEY", key)
    words = ("--host", ALL, "--key", STRONG, "--storage-account", "store")
    with pytest.raises(OptionError, match="key of the storage account"):
        settings("--expose", *words)
    monkeypatch.setenv("BATCH_EMULATOR_STORAGE_KEY", STRONG)
    assert settings("--expose", *words).storage is not None


def test_key_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text(f"{STRONG}\n")
    assert settings("--key-file", str(file)).key == STRONG
    monkeypatch.setenv("BATCH_EMULATOR_KEY_FILE", str(file))
    assert settings("--expose", "--host", ALL).key == STRONG
    assert settings("--key", "YQ==").key == "YQ=="
    monkeypatch.setenv("BATCH_EMULATOR_KEY", "YQ==")
    assert settings().key == "YQ=="  # of a program that starts an emulator of its own
    assert settings("--key-file", str(file)).key == STRONG


def test_unreadable_or_empty_key_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "the key"
    with pytest.raises(OptionError, match=f"(?s)cannot read the key file.*> '{file}'"):
        settings("--key-file", str(file))
    file.touch()
    with pytest.raises(OptionError, match=f"(?s)the key is empty.*> '{file}'"):
        settings("--key-file", str(file))
    file.write_text("YQ==")
    with pytest.raises(OptionError, match=f"(?s)1 bytes of the 32.*> '{file}'"):
        settings("--key-file", str(file), "--expose", "--host", ALL)


@pytest.mark.parametrize(("host", "local"), [(ALL, "127.0.0.1"), ("::1", "[::1]")])
def test_url_is_one_that_tasks_reach(host: str, local: str) -> None:
    try:
        listener = bind(host, 0)
    except OSError:
        pytest.skip(f"this machine has no address {host}")
    with listener:
        assert url_of(listener) == f"http://{local}:{listener.getsockname()[1]}"
