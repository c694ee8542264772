"""The command line: every option, checked, and turned into the settings of an emulator."""

from __future__ import annotations

import argparse
import base64
import binascii
import importlib.util
import ipaddress
import math
import os
import shlex
from pathlib import Path
from urllib.parse import urlsplit

from batch_emulator import __version__
from batch_emulator.autoscale.dialect import DIALECTS
from batch_emulator.domain.account import Limits
from batch_emulator.domain.eviction_trace import TraceEntry, TraceError, load_trace
from batch_emulator.domain.validation.machine_rules import MachineChoice
from batch_emulator.emulator import EmulatorSettings
from batch_emulator.executor.isolation import MODES
from batch_emulator.files_share.shares import StorageAccount

_LARGEST = 1e6


class OptionError(Exception):
    """An unusable option: what, why and fix."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(f"error: {what}\n  why: {why}\n  fix: {fix}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m batch_emulator`."""
    top = argparse.ArgumentParser(
        prog="python -m batch_emulator", description="An emulator of the Azure Batch data plane."
    )
    top.add_argument("--version", action="version", version=__version__)
    _add_server(top.add_argument_group("server"))
    _add_account(top.add_argument_group("account"))
    _add_nodes(top.add_argument_group("nodes and tasks"))
    _add_evictions(top.add_argument_group("spot evictions"))
    return top


def _add_server(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--host", default="127.0.0.1", help="loopback address to listen on")
    group.add_argument(
        "--port", type=int, default=0, help="port to listen on; 0 picks a free one and prints it"
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
    group.add_argument("--seed", type=int, help="seed of IDs and evictions")
    group.add_argument(
        "--ui", action="store_true",
        help="serve a page for browsers too, on a port of its own, and keep the newest requests "
        "for it; the link that is printed signs one browser in",
    )  # fmt: skip
    group.add_argument(
        "--ui-port",
        type=int,
        default=0,
        metavar="PORT",
        help="port of the page; 0 picks a free one",
    )


def _add_account(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--account", required=True, help="name of the Batch account")
    group.add_argument("--key", help="account key, base64; prefer BATCH_EMULATOR_KEY")
    group.add_argument(
        "--dedicated-core-quota", type=int, metavar="N",
        help="maximum number of cores of all dedicated nodes",
    )  # fmt: skip
    group.add_argument(
        "--spot-core-quota", type=int, metavar="N",
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
        "--files-port", type=int, default=0, help="port of Azure Files; 0 picks a free one"
    )


def _add_nodes(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument(
        "--boot-seconds", type=float, default=1.0, help="seconds until a node has booted"
    )
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
        "--kill-grace-seconds", type=float, default=5.0, help="seconds between SIGTERM and SIGKILL"
    )


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
        "--eviction-notice", type=_non_negative, default=30.0, metavar="SECONDS",
        help="seconds between notice and eviction; 0 for no notice",
    )  # fmt: skip
    group.add_argument(
        "--capacity-away", type=_non_negative, default=0.0, metavar="SECONDS",
        help="mean time until an evicted node returns",
    )  # fmt: skip


def _trace(text: str) -> tuple[TraceEntry, ...]:
    try:
        return load_trace(Path(text))
    except TraceError as err:
        raise argparse.ArgumentTypeError(str(err)) from err


def _non_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _LARGEST:
        raise argparse.ArgumentTypeError(
            f"invalid value '{text}': expected a number from 0 to {_LARGEST:.0f}"
        )
    return value


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as err:
        raise argparse.ArgumentTypeError(f"{text}: {err}") from err


def _quota(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"invalid value '{text}': expected a number from 0")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"invalid value '{text}': expected a positive number")
    return value


def settings_of(options: argparse.Namespace, url: str) -> EmulatorSettings:
    """Return the settings for an emulator that is reached at `url`.

    Raises:
        OptionError: a key is missing or not base64, container options cannot be parsed, or
            --azure-names lacks other options or a package.
    """
    if options.azure_names:
        _check_names(options)
    return EmulatorSettings(
        data_dir=options.data_dir.resolve(),
        account=options.account,
        key=_account_key(options.key),
        url=url,
        limits=Limits(
            dedicated_cores=options.dedicated_core_quota,
            spot_cores=options.spot_core_quota,
            boot_s=options.boot_seconds,
            seed=options.seed,
            autoscale=DIALECTS[options.autoscale_dialect],
            pools=options.pool_quota,
            active_jobs=options.active_job_quota,
            eviction_rate=options.eviction_rate,
            notice_s=options.eviction_notice,
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
        storage=_storage(options.storage_account),
        blob_endpoint=options.blob_endpoint,
        isolation=_isolation(options.isolation),
    )


def check_host(host: str) -> None:
    """Refuse an address that other machines can reach. Raises OptionError."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise OptionError(
            f"invalid --host '{host}': expected a loopback address",
            "a client with the key can run commands on this machine",
            "use --host 127.0.0.1",
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


def _account_key(given: str | None) -> str:
    key = _base64(given or os.environ.get("BATCH_EMULATOR_KEY", ""))
    if key is None:
        raise OptionError(
            "missing account key",
            "--key and BATCH_EMULATOR_KEY are empty or not base64",
            "export BATCH_EMULATOR_KEY=$(head -c 64 /dev/urandom | base64 -w0)",
        )
    return key


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
