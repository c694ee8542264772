"""The command line: every option, checked, and turned into the settings of an emulator."""

from __future__ import annotations

import argparse
import base64
import binascii
import importlib.util
import ipaddress
import math
import os
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from batch_emulator import __version__
from batch_emulator.autoscale.dialect import DIALECTS
from batch_emulator.domain.account import Limits
from batch_emulator.domain.eviction_trace import TraceEntry, TraceError, load_trace
from batch_emulator.domain.fault_rules import RuleSet, load_rules
from batch_emulator.domain.faults import StatedError
from batch_emulator.domain.validation.machine_rules import MachineChoice
from batch_emulator.emulator import EmulatorSettings
from batch_emulator.executor.isolation import MODES
from batch_emulator.executor.node_images import parse_images
from batch_emulator.files_share.shares import StorageAccount
from batch_emulator.http.routes.table import OPERATIONS
from batch_emulator.storage.account_store import stored_name

_ACCOUNT = re.compile(r"[A-Za-z0-9._-]{1,64}")  # our choice: Azure has 3 to 24 of a-z and 0-9
_N = TypeVar("_N", int, float)
_LARGEST = 1e6
_LARGEST_PORT = 65535
_NEW_KEY = "$(head -c 64 /dev/urandom | base64 -w0)"
_KEY_BYTES = 32  # our choice: as long as the hash that signs with it; keys of Azure have 64
# Keys of other emulators, which everybody knows.
_WELL_KNOWN_KEYS = frozenset(
    {
        # https://learn.microsoft.com/azure/storage/common/storage-connect-azurite (read 2026-11-29)
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
        # https://learn.microsoft.com/azure/cosmos-db/emulator (read 2026-11-29)
        "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==",
    }
)


class OptionError(StatedError):
    """An unusable option."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m batch_emulator`."""
    top = argparse.ArgumentParser(
        prog="python -m batch_emulator",
        description="An emulator of the Azure Batch data plane.",
        epilog="`export FILE` and `import FILE` write and read an account as one file: "
        "see `export --help`.",
    )
    top.add_argument("--version", action="version", version=__version__)
    top.add_argument(
        "--check",
        action="store_true",
        help="check the options, rules, images and seed file, and end",
    )
    _add_server(top.add_argument_group("server"))
    _add_account(top.add_argument_group("account"))
    _add_nodes(top.add_argument_group("nodes and tasks"))
    _add_evictions(top.add_argument_group("spot evictions and faults"))
    return top


def _add_server(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="address to listen on, a loopback address unless --expose is given",
    )  # fmt: skip
    group.add_argument(
        "--expose", action="store_true",
        help="allow a --host that other machines reach, such as 0.0.0.0; needs a key of your own, "
        "because whoever has it can run commands on this machine",
    )  # fmt: skip
    group.add_argument(
        "--port", type=_port, default=0, help="port to listen on; 0 picks a free one and prints it"
    )
    group.add_argument(
        "--data-dir",
        type=Path,
        required=True,
        help="folder of the state and the nodes; the emulator ends when it is deleted",
    )
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="format of the log; json writes one object per line",
    )
    group.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="lowest level to log; debug includes every request and change of state",
    )
    group.add_argument(
        "--time-scale", type=_positive, default=1.0, metavar="N",
        help="seconds of the emulator's clock per second",
    )  # fmt: skip
    group.add_argument("--seed", type=_whole, help="seed of IDs and evictions")
    group.add_argument(
        "--seed-file", type=Path, metavar="FILE",
        help="pools, jobs and job schedules to add at the start, as JSON, or an exported account; "
        "those that exist stay as they are",
    )  # fmt: skip
    group.add_argument(
        "--on-ready", metavar="COMMAND",
        help="shell command to run when requests are answered, with the endpoints and keys in its "
        "environment; until it ends, health is 503, and if it fails, the emulator ends",
    )  # fmt: skip
    group.add_argument(
        "--ui", action="store_true",
        help="serve a page for browsers too, on a port of its own, and keep the newest requests "
        "for it; the link that is printed signs one browser in",
    )  # fmt: skip
    group.add_argument(
        "--ui-port",
        type=_port,
        default=0,
        metavar="PORT",
        help="port of the page; 0 picks a free one",
    )


def _add_account(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--account", help="name of the Batch account; default: the one in the data dir"
    )
    group.add_argument("--key", help="account key, base64; prefer BATCH_EMULATOR_KEY or a file")
    group.add_argument(
        "--key-file", type=Path, metavar="FILE",
        help="file with the account key, such as a secret of a container; "
        "default: BATCH_EMULATOR_KEY_FILE, unless BATCH_EMULATOR_KEY is set",
    )  # fmt: skip
    group.add_argument(
        "--dedicated-core-quota", type=_quota, metavar="N",
        help="maximum number of cores of all dedicated nodes",
    )  # fmt: skip
    group.add_argument(
        "--spot-core-quota", type=_quota, metavar="N",
        help="maximum number of cores of all spot nodes",
    )  # fmt: skip
    group.add_argument("--pool-quota", type=_quota, metavar="N", help="maximum number of pools")
    group.add_argument(
        "--active-job-quota", type=_quota, metavar="N",
        help="maximum number of active jobs and job schedules",
    )  # fmt: skip
    group.add_argument(
        "--vm-size", action="append", default=[], metavar="NAME",
        help="accept this VM size in addition to those of Azure (repeatable)",
    )  # fmt: skip
    group.add_argument(
        "--any-machine", action="store_true",
        help="accept any VM size, image and node agent",
    )  # fmt: skip
    group.add_argument(
        "--strict-pools", action="store_true",
        help="refuse images whose support has ended, and pools that Azure creates only for "
        "Microsoft Entra users: in a subnet, or of a gallery image",
    )  # fmt: skip
    group.add_argument(
        "--autoscale-dialect",
        choices=sorted(DIALECTS),
        default="default",
        help="formulas to accept where the sources on the language disagree: strict accepts the "
        "fewest, lenient the most",
    )
    group.add_argument(
        "--blob-endpoint",
        metavar="URL",
        help="blob service for mounts, with the account in its path: http://127.0.0.1:10000/NAME; "
        "after a change, the stored tasks use it instead of the earlier one",
    )
    group.add_argument(
        "--storage-account",
        metavar="NAME",
        help="serve Azure Files for this account, and let identities use its blobs; "
        "its key comes from BATCH_EMULATOR_STORAGE_KEY, and the seed of its user delegation keys "
        "from BATCH_EMULATOR_STORAGE_SEED (default: that of an unchanged Azurite)",
    )
    group.add_argument(
        "--files-port", type=_port, default=0, help="port of Azure Files; 0 picks a free one"
    )


def _add_nodes(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--boot-seconds", type=_non_negative, default=1.0, help="seconds until a node has booted"
    )
    group.add_argument(
        "--delete-seconds", type=_non_negative, default=2.0, metavar="SECONDS",
        help="seconds for which a deleted pool, job, job schedule or certificate is in the state "
        "deleting; until then it cannot be added again",
    )  # fmt: skip
    group.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="PATTERN",
        help="environment variables that tasks inherit in addition to LANG (repeatable)",
    )
    group.add_argument(
        "--isolation", choices=MODES,
        help="user: run tasks as another user, which needs root; environment: only give them "
        "their own variables and Python; auto: user where it works; "
        "default: BATCH_EMULATOR_ISOLATION, else auto",
    )  # fmt: skip
    group.add_argument(
        "--azure-names", action="store_true",
        help="redirect Azure's host names to the local services in tasks; "
        "needs --storage-account with the name of --account, and --blob-endpoint",
    )  # fmt: skip
    group.add_argument(
        "--container-engine", metavar="NAME",
        help="engine of container tasks: podman, docker, a path, none, or auto (first that works); "
        "default: BATCH_EMULATOR_CONTAINER_ENGINE, else auto",
    )  # fmt: skip
    group.add_argument(
        "--container-run-options", type=_words, metavar="TEXT",
        help="options of every container, such as '--runtime runc'; "
        "default: BATCH_EMULATOR_CONTAINER_RUN_OPTIONS",
    )  # fmt: skip
    group.add_argument(
        "--image", action="append", default=[], metavar="REFERENCE=FOLDER",
        help="what the nodes of an image have: publisher:offer:sku[:version] or the ARM id of an "
        "image, and a folder laid out as its disk, with at least sh and python3 (repeatable)",
    )  # fmt: skip
    group.add_argument(
        "--kill-grace-seconds", type=_non_negative, default=5.0,
        help="seconds between SIGTERM and SIGKILL",
    )  # fmt: skip


def _add_evictions(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--eviction-rate", type=_non_negative, default=0.0, metavar="N",
        help="mean number of evictions of a spot node per hour",
    )  # fmt: skip
    group.add_argument(
        "--eviction-trace", type=_trace, default=(), metavar="FILE",
        help="evictions and capacity by time: JSON lines or CSV of time, pool, evict, capacity",
    )  # fmt: skip
    group.add_argument(
        "--eviction-notice", type=_notice, default="0-30", metavar="SECONDS",
        help="seconds between notice and eviction, or a range of them such as 2-10; 0 for no "
        "notice. An eviction on request without a notice of its own gets the longest",
    )  # fmt: skip
    group.add_argument(
        "--eviction-unusable", type=_non_negative, default=0.0, metavar="SECONDS",
        help="seconds for which an evicted node is unusable before it is preempted",
    )  # fmt: skip
    group.add_argument(
        "--capacity-away", type=_non_negative, default=0.0, metavar="SECONDS",
        help="mean time until an evicted node returns",
    )  # fmt: skip
    group.add_argument(
        "--faults", type=Path, metavar="FILE",
        help="rules for faults on purpose, TOML or JSON: errors, delays and cut connections of "
        "requests, nodes that do not boot, start tasks that fail, capacity and quotas by time",
    )  # fmt: skip


def _trace(text: str) -> tuple[TraceEntry, ...]:
    try:
        return load_trace(Path(text))
    except TraceError as err:
        raise argparse.ArgumentTypeError(str(err)) from err


def _checked(text: str, read: Callable[[str], _N], fits: Callable[[_N], bool], expected: str) -> _N:
    with suppress(ValueError):
        value = read(text)
        if fits(value):
            return value
    raise argparse.ArgumentTypeError(f"invalid value '{text}': expected {expected}")


def _non_negative(text: str) -> float:
    expected = f"a number from 0 to {_LARGEST:.0f}"
    return _checked(text, float, lambda value: 0 <= value <= _LARGEST, expected)


def _notice(text: str) -> tuple[float, float]:
    """Return the shortest and the longest notice in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)(?:-(\d+(?:\.\d*)?))?", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"invalid value '{text}': expected a number from 0, or a range such as 2-10"
        )
    shortest, longest = (_non_negative(each or found[1]) for each in found.groups())
    if shortest > longest:
        raise argparse.ArgumentTypeError(
            f"invalid value '{text}': expected the shorter notice first, as in 2-10"
        )
    return shortest, longest


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as err:
        raise argparse.ArgumentTypeError(f"{text}: {err}") from err


def _whole(text: str) -> int:
    return _checked(text, int, lambda _: True, "a whole number")


def _quota(text: str) -> int:
    return _checked(text, int, lambda value: value >= 0, "a whole number from 0")


def _port(text: str) -> int:
    expected = f"a port from 0 to {_LARGEST_PORT}"
    return _checked(text, int, lambda value: 0 <= value <= _LARGEST_PORT, expected)


def _positive(text: str) -> float:
    return _checked(text, float, lambda value: 0 < value < math.inf, "a positive number")


def settings_of(options: argparse.Namespace, url: str) -> EmulatorSettings:
    """Return the settings for an emulator that is reached at `url`.

    Raises:
        OptionError: the name of the account is invalid, --host and --expose do not fit,
            --blob-endpoint is no URL with an account, a key is missing, not base64 or too weak for
            --expose, container options cannot be parsed, or --azure-names lacks other options or a
            package.
        StatedError: a rule for faults or an image is invalid.
    """
    options.account = options.account or _stored_account(options.data_dir)
    check_account(options.account)
    _check_host(options.host, expose=options.expose)
    _check_blob_endpoint(options.blob_endpoint)
    blob_endpoint = options.blob_endpoint and options.blob_endpoint.rstrip("/")
    if options.azure_names:
        _check_names(options)
    key, storage = _account_key(options), _storage(options.storage_account)
    if options.expose:
        _check_strength("account key", key, _key_fix(options))
        if storage is not None:
            fix = f"export BATCH_EMULATOR_STORAGE_KEY={_NEW_KEY}"
            _check_strength("key of the storage account", storage.key, fix)
    return EmulatorSettings(
        data_dir=options.data_dir.resolve(),
        account=options.account,
        key=key,
        url=url,
        exposed=options.expose,
        limits=Limits(
            dedicated_cores=options.dedicated_core_quota,
            spot_cores=options.spot_core_quota,
            boot_s=options.boot_seconds,
            delete_s=options.delete_seconds,
            seed=options.seed,
            autoscale=DIALECTS[options.autoscale_dialect],
            pools=options.pool_quota,
            active_jobs=options.active_job_quota,
            eviction_rate=options.eviction_rate,
            notice_s=options.eviction_notice[1],
            shortest_notice_s=options.eviction_notice[0],
            unusable_s=options.eviction_unusable,
            capacity_away_s=options.capacity_away,
            trace=options.eviction_trace,
            machines=MachineChoice(
                sizes=tuple(options.vm_size),
                any_machine=options.any_machine,
                strict=options.strict_pools,
            ),
        ),
        pass_env=tuple(options.pass_env),
        kill_grace_s=options.kill_grace_seconds,
        time_scale=options.time_scale,
        container_engine=options.container_engine
        or os.environ.get("BATCH_EMULATOR_CONTAINER_ENGINE")
        or "auto",
        container_options=_container_options(options.container_run_options),
        storage=storage,
        blob_endpoint=blob_endpoint,
        isolation=_isolation(options.isolation),
        faults=load_rules(options.faults, OPERATIONS) if options.faults else RuleSet(),
        images=parse_images(options.image, MachineChoice(any_machine=options.any_machine)),
    )


def _stored_account(data_dir: Path) -> str:
    try:
        name, why = stored_name(data_dir), f"{data_dir} has no account yet"
    except (OSError, UnicodeDecodeError) as err:
        name, why = "", str(err)
    if not name:
        raise OptionError("missing --account", why, "add --account NAME")
    return name


def check_account(name: str) -> None:
    """Refuse a name that clients cannot put into a signature, a URL or a header."""
    if not _ACCOUNT.fullmatch(name):
        raise OptionError(
            f"invalid account {name[:100]!r}",
            "letters, digits, '-', '_' and '.' are expected, 64 at most",
            "use a name as on Azure: 3 to 24 lower-case letters and digits",
        )


def _check_host(host: str, *, expose: bool) -> None:
    """Refuse an address that other machines can reach, unless it is to be exposed."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback and not expose:
        raise OptionError(
            f"invalid --host '{host}': expected a loopback address",
            "a client with the key can run commands on this machine",
            "use --host 127.0.0.1, or add --expose if other machines are to reach it",
        )
    if loopback and expose:
        raise OptionError(
            f"--expose has no effect with --host {host}",
            "only this machine reaches a loopback address",
            "add --host 0.0.0.0, or remove --expose",
        )


def _check_strength(what: str, key: str, fix: str) -> None:
    """Refuse a key that others know or can guess, as the key of an exposed port."""
    if key in _WELL_KNOWN_KEYS:
        why = "it is the published default of another emulator"
    elif (size := len(base64.b64decode(key))) < _KEY_BYTES:
        why = f"it has {size} bytes of the {_KEY_BYTES} that cannot be guessed"
    else:
        return
    raise OptionError(
        f"--expose needs another {what}",
        f"{why}, and a client with the key can run commands on this machine",
        fix,
    )


def _check_blob_endpoint(url: str | None) -> None:
    with suppress(ValueError):
        parts = urlsplit("http://127.0.0.1/none" if url is None else url)
        is_host = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_host and parts.path.strip("/") and not parts.query:
            return
    raise OptionError(
        f"invalid --blob-endpoint '{url}'",
        "the URL of a blob service is expected, with the account in its path",
        "use --blob-endpoint http://127.0.0.1:10000/NAME",
    )


def _check_names(options: argparse.Namespace) -> None:
    account, endpoint = options.account, options.blob_endpoint or ""
    if options.storage_account != account or urlsplit(endpoint).path.strip("/") != account:
        raise OptionError(
            "--azure-names needs a storage account",
            f"the Batch account and the storage account must both have the name '{account}'",
            f"add --storage-account {account} --blob-endpoint http://127.0.0.1:PORT/{account}",
        )
    if importlib.util.find_spec("cryptography") is None:
        raise OptionError(
            "--azure-names needs the package cryptography",
            "it is not installed",
            "pip install 'batch-emulator[azure-names]'",
        )


def _container_options(given: tuple[str, ...] | None) -> tuple[str, ...]:
    name = "BATCH_EMULATOR_CONTAINER_RUN_OPTIONS"
    try:
        return _words(os.environ.get(name, "")) if given is None else given
    except argparse.ArgumentTypeError as err:
        raise OptionError(f"cannot parse {name}", str(err), "quote it as in a shell") from err


def _isolation(given: str | None) -> str:
    name = "BATCH_EMULATOR_ISOLATION"
    mode = given or os.environ.get(name) or "auto"
    if mode not in MODES:
        raise OptionError(
            f"invalid {name} '{mode}'", f"expected one of {', '.join(MODES)}", f"export {name}=auto"
        )
    return mode


def _base64(text: str) -> str | None:
    """Return the text if it is base64 of at least one byte, else None."""
    try:
        return text if base64.b64decode(text, validate=True) else None
    except binascii.Error:
        return None


def _account_key(options: argparse.Namespace) -> str:
    """Return the key of --key, --key-file or the environment, in this order."""
    file = _key_file(options)
    text = options.key
    if text is None and file is not None:
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as err:
            what = f"cannot read the key file {file}"
            raise OptionError(what, str(err), _key_fix(options)) from err
    key = _base64(os.environ.get("BATCH_EMULATOR_KEY", "") if text is None else text)
    if key is None:
        where = "BATCH_EMULATOR_KEY" if file is None else str(file)
        where = where if options.key is None else "--key"
        why = f"{where} is empty or not base64"
        raise OptionError("missing account key", why, _key_fix(options))
    return key


def _key_file(options: argparse.Namespace) -> Path | None:
    name = options.key_file
    if name is None and not os.environ.get("BATCH_EMULATOR_KEY"):
        name = os.environ.get("BATCH_EMULATOR_KEY_FILE")
    return Path(name) if name else None


def _key_fix(options: argparse.Namespace) -> str:
    """Return how to give another account key where it is read."""
    file = _key_file(options)
    if options.key is not None:
        return f"remove --key, and export BATCH_EMULATOR_KEY={_NEW_KEY}"
    if file is not None:
        return f"write a key to it: {_NEW_KEY[2:-1]} > {shlex.quote(str(file))}"
    return f"export BATCH_EMULATOR_KEY={_NEW_KEY}"


def _storage(account: str | None) -> StorageAccount | None:
    if account is None:
        return None
    key = _base64(os.environ.get("BATCH_EMULATOR_STORAGE_KEY", ""))
    if key is None:
        raise OptionError(
            "missing key of the storage account",
            "BATCH_EMULATOR_STORAGE_KEY is empty or not base64",
            "set it to the account's key, or remove --storage-account",
        )
    return StorageAccount(account, key, os.environ.get("BATCH_EMULATOR_STORAGE_SEED", ""))
