"""The options of `docker create`, in which the service gives `containerRunOptions` to the engine.

"These additional options are supplied as arguments to the docker create command, in addition to
those controlled by the Batch Service" (docs of TaskContainerSettings). So options are read as that
command reads them, whatever the engine of this machine is. The table is that of Docker 28.2.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

# options without a value, or with `=true` or `=false`
_SWITCHES = """
    disable-content-trust help init interactive no-healthcheck oom-kill-disable privileged
    publish-all quiet read-only rm tty use-api-socket
"""
_WITH_VALUE = """
    add-host annotation attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent
    cgroupns cidfile cpu-count cpu-percent cpu-period cpu-quota cpu-rt-period cpu-rt-runtime
    cpu-shares cpus cpuset-cpus cpuset-mems device device-cgroup-rule device-read-bps
    device-read-iops device-write-bps device-write-iops dns dns-opt dns-option dns-search domainname
    entrypoint env env-file expose gpus group-add health-cmd health-interval health-retries
    health-start-interval health-start-period health-timeout hostname io-maxbandwidth io-maxiops ip
    ip6 ipc isolation kernel-memory label label-file link link-local-ip log-driver log-opt
    mac-address memory memory-reservation memory-swap memory-swappiness mount name net net-alias
    network network-alias oom-score-adj pid pids-limit platform publish pull restart runtime
    security-opt shm-size stop-signal stop-timeout storage-opt sysctl tmpfs ulimit user userns uts
    volume volume-driver volumes-from workdir
"""
SWITCHES = frozenset(_SWITCHES.split())
WITH_VALUE = frozenset(_WITH_VALUE.split())
_LETTERS = {
    "a": "attach", "c": "cpu-shares", "e": "env", "h": "hostname", "i": "interactive",
    "l": "label", "m": "memory", "p": "publish", "P": "publish-all", "q": "quiet", "t": "tty",
    "u": "user", "v": "volume", "w": "workdir",
}  # fmt: skip
_ALIASES = {"net": "network", "net-alias": "network-alias", "dns-opt": "dns-option"}
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_VARIABLE = re.compile(r"\$(?:\{(AZ_BATCH_\w+)\}|(AZ_BATCH_\w+))", re.ASCII)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", re.ASCII)
# The service removes containers itself (container workloads page), and has pulled the image.
_DROPPED = frozenset({"rm", "pull"})
GPU_RUNTIME = "nvidia"


class OptionsError(Exception):
    """Options that `docker create` refuses; the message is that of docker where it has one."""


@dataclass(frozen=True, slots=True)
class ContainerOption:
    """An option by its long name; `value` of a switch is `true` or `false`."""

    name: str
    value: str

    @property
    def wants_gpus(self) -> bool:
        """Return True if it gives the container the GPUs of the node."""
        return self.name == "gpus" or (self.name, self.value) == ("runtime", GPU_RUNTIME)

    def word(self) -> str:
        """Return the option as one argument of an engine."""
        return f"--{self.name}={self.value}"


def parse_options(text: str, variables: Mapping[str, str]) -> list[ContainerOption]:
    """Return the options in a text that is quoted as for a shell.

    `$AZ_BATCH_…` and `${AZ_BATCH_…}` of `variables` are replaced in each word; other variables stay
    as they are [S].

    Raises:
        OptionsError: `docker create` would refuse the options.
    """
    try:
        words = [_expand(word, variables) for word in shlex.split(text)]
    except ValueError as err:  # a quotation mark without its other half
        raise OptionsError(str(err)) from err
    found = [option for option in _read(words) if option.name not in _DROPPED]
    for option in found:
        if option.name == "help":
            raise OptionsError("--help creates no container")
        if option.name == "name" and not _NAME.fullmatch(option.value):
            allowed = "only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed"
            raise OptionsError(f"Invalid container name ({option.value}), {allowed}")
    return found


def _expand(word: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), word)


def _read(words: Iterable[str]) -> Iterator[ContainerOption]:
    """Read words in the grammar of docker's parser (spf13/pflag)."""
    rest = iter(words)
    for word in rest:
        if word == "--":
            word = next(rest, "")  # noqa: PLW2901 - what follows is no option
            if not word:
                return
        elif word.startswith("--"):
            yield _read_long(word, rest)
            continue
        elif word.startswith("-") and len(word) > 1:
            yield from _read_letters(word, rest)
            continue
        raise OptionsError(f"{word!r} is not an option: the image is that of imageName")


def _read_long(word: str, rest: Iterator[str]) -> ContainerOption:
    name, given, value = word[2:].partition("=")
    if not name or name.startswith("-"):
        raise OptionsError(f"bad flag syntax: {word}")
    if name in SWITCHES:
        return _switch(name, value if given else "true")
    if name not in WITH_VALUE:
        raise OptionsError(f"unknown flag: --{name}")
    if not given:
        value = _next(rest, f"--{name}")
    return ContainerOption(_ALIASES.get(name, name), value)


def _read_letters(word: str, rest: Iterator[str]) -> Iterator[ContainerOption]:
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _LETTERS.get(letter)
        if name is None:
            raise OptionsError(f"unknown shorthand flag: {letter!r} in -{letter}{letters}")
        if len(letters) > 1 and letters.startswith("="):
            value, letters = letters[1:], ""
        elif name in SWITCHES:
            value = "true"
        elif letters:
            value, letters = letters, ""
        else:
            value = _next(rest, f"{letter!r} in -{letter}")
        yield _switch(name, value) if name in SWITCHES else ContainerOption(name, value)


def _switch(name: str, value: str) -> ContainerOption:
    if value in _TRUE | _FALSE:
        return ContainerOption(name, "true" if value in _TRUE else "false")
    letter = next((letter for letter, known in _LETTERS.items() if known == name), "")
    shown = f"-{letter}, --{name}" if letter else f"--{name}"
    why = f'strconv.ParseBool: parsing "{value}": invalid syntax'
    raise OptionsError(f'invalid argument "{value}" for "{shown}" flag: {why}')


def _next(rest: Iterator[str], option: str) -> str:
    value = next(rest, None)
    if value is None:
        raise OptionsError(f"flag needs an argument: {option}")
    return value


def gpu_devices(request: str) -> list[str]:
    """Return the devices of a value of `--gpus` in the names of the Container Device Interface.

    Podman gives GPUs to containers by these names: `nvidia.com/gpu=all`, `nvidia.com/gpu=0`.
    """
    fields: dict[str, str] = {}
    for field in next(csv.reader([request]), [""]):
        name, _, value = field.partition("=")
        fields[name] = value
    count = fields.get("count") or request
    if fields.get("device"):
        names = fields["device"].split(",")
    elif count.isdecimal():
        names = [str(number) for number in range(int(count))]
    else:
        names = ["all"]
    return [f"nvidia.com/gpu={name}" for name in names]
