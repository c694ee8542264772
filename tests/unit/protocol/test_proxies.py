"""No process that the client, the agent or the emulator starts asks a proxy for this machine."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Mapping

import pytest

from batch_emulator import proxies
from batch_emulator.emulator import inherited_environment
from runner.protocol.host import exclude_loopback

Exclude = Callable[[Mapping[str, str]], dict[str, str]]
PROXY = "http://proxy.example:3128"


@pytest.fixture(params=[exclude_loopback, proxies.exclude_loopback], ids=["runner", "emulator"])
def exclude(request: pytest.FixtureRequest) -> Exclude:
    return request.param


@pytest.mark.parametrize(
    "name", ["http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "Ftp_Proxy"]
)
@pytest.mark.parametrize(
    ("given", "excluded"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"no_proxy": "intranet, .corp"}, "intranet,.corp,127.0.0.1,localhost"),
        ({"NO_PROXY": "localhost,10.0.0.0/8"}, "localhost,10.0.0.0/8,127.0.0.1"),
        ({"no_proxy": "", "NO_PROXY": "intranet"}, "intranet,127.0.0.1,localhost"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_this_machine_is_excluded_from_any_proxy(
    exclude: Exclude, name: str, given: Mapping[str, str], excluded: str
) -> None:
    variables = exclude({name: PROXY, **given})
    assert variables == {"no_proxy": excluded, "NO_PROXY": excluded}
    assert exclude({name: PROXY, **given, **variables}) == variables


def test_environment_without_proxies_stays_as_it_is(exclude: Exclude) -> None:
    assert exclude({"PATH": "/bin", "NO_PROXY": "intranet"}) == {}


def test_programs_of_python_read_the_variables(
    exclude: Exclude, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"http_proxy": PROXY, **exclude({"http_proxy": PROXY})}.items():
        monkeypatch.setenv(name, value)
    assert urllib.request.proxy_bypass("127.0.0.1")
    assert urllib.request.proxy_bypass("localhost")
    assert not urllib.request.proxy_bypass("pypi.example")


def test_tasks_of_an_emulator_alone_exclude_this_machine() -> None:
    environment = {"https_proxy": PROXY, "OTHER": "1"}
    passed = inherited_environment(environment, ("*_proxy",))
    assert passed == {"https_proxy": PROXY, **proxies.exclude_loopback(environment)}
    assert inherited_environment(environment, ("OTHER",)) == {"OTHER": "1"}


@pytest.mark.parametrize("proxy", [PROXY, "socks5h://127.0.0.1:1080", "what://127.0.0.1"])
def test_clients_of_the_emulator_start_with_any_proxy(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", proxy)
    import httpx

    options = proxies.client_options()
    assert options["trust_env"] is (proxy == PROXY)
    httpx.Client(**options).close()
