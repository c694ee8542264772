"""Which images the Batch account itself says it supports, and until when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING

from runner.azure.credentials import connect
from runner.azure.stack import outputs_path
from runner.core.checks import Check, failed, passed, skipped, warned
from runner.core.errors import ExitCode, RunnerError
from runner.core.settings import Settings

if TYPE_CHECKING:
    from infra.pool_plan import MarketplaceImage, PoolPlan

_SOON_DAYS = 180


def check_agents(settings: Settings, pools: Sequence[PoolPlan], today: date) -> Iterator[Check]:
    """Ask the account, where there is one: its list is newer than any table."""
    if not outputs_path(settings).is_file():
        yield skipped("images", "the account's own list is asked for once the stack is deployed")
        return
    from runner.azure.pools import list_supported_images  # noqa: PLC0415  the Batch SDK

    try:
        supported = list_supported_images(connect(settings))
    except RunnerError as err:
        yield failed("images", err)
        return
    for image, agent in dict.fromkeys((pool.image, pool.node_agent) for pool in pools):
        if image is not None:
            key = (image.publisher.lower(), image.offer.lower(), image.sku.lower(), agent.lower())
            yield _verdict(image, agent, key in supported, supported.get(key), today)


def _verdict(
    image: MarketplaceImage, agent: str, known: bool, end: date | None, today: date
) -> Check:
    name = f"{image.offer}/{image.sku} with {agent}"
    fix = "choose another image: az batch pool supported-images list -o table"
    if not known or (end is not None and end <= today):
        what = f"Batch does not support {name}" if not known else f"{name} ended on {end}"
        error = RunnerError("R-IMAGE-ENDED", what, fix=fix, exit_code=ExitCode.PREFLIGHT)
        return failed("images", error)
    if end is not None and (end - today).days < _SOON_DAYS:
        return warned("images", f"{name} ends on {end}", fix)
    return passed("images", f"{name} is supported{f' until {end}' if end else ''}")
