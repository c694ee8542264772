"""One qualification from the start of the services to the removal of what it made."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime

from runner.core.file_lock import file_lock
from runner.core.pricing.prices import load_price_table
from runner.core.progress import OnProgress
from runner.core.settings import Settings
from runner.features.qualify.made import MadeThings, with_target
from runner.features.qualify.measure import Qualification, QualificationRequest, longest_s
from runner.features.qualify.places import Place
from runner.features.qualify.report import QualificationReport
from runner.protocol.errors import RunnerError

_LOCK_S = 5.0
# A formula is evaluated every five minutes, and removing a node takes some minutes.
_RELEASE_S = 900.0


def bound_usd(place: Place, settings: Settings, request: QualificationRequest) -> float | None:
    """Return what the nodes of a qualification cost at most; None if a price is unknown."""
    prices, location = load_price_table(settings.home), place.connection.outputs.location
    hours = (longest_s(request.bounds) + _RELEASE_S) / 3600
    total = 0.0
    for pool, nodes in ((place.first, request.nodes), (place.second, 1)):
        if pool is None:
            continue
        # Spot prices never exceed dedicated ones.
        price = prices.find_node(pool.vm_size, location, spot=False, disk=pool.os_disk)
        if price is None:
            return None
        total += nodes * hours * price.usd_per_hour
    return total


def run_qualification(
    place: Place,
    settings: Settings,
    request: QualificationRequest,
    report: QualificationReport,
    on_progress: OnProgress,
) -> None:
    """Measure a place, fill the report, and remove everything, also after an error or Ctrl-C.

    What an earlier qualification left, because it was killed, is removed first.

    Raises:
        RunnerError: another qualification of this machine runs, or the services do not respond.
    """
    connection = place.connection
    report.outputs, report.first, report.second = connection.outputs, place.first, place.second
    folder = settings.home / "qualify"
    with (
        file_lock(folder / "lock", what="qualifying a pool", timeout_s=_LOCK_S),
        _reporting(report),
    ):
        report.left += MadeThings.open(settings).remove(connection, on_progress)
        made = MadeThings.open(settings)
        measuring = Qualification(place, settings, request, made, on_progress)
        try:
            for pool in place.own:
                made.add(pools=pool.id)
            measuring.measure()
        finally:
            report.evidence = measuring.evidence
            again = with_target("runner qualify", connection)  # unless the last line returns
            report.left = [f"the removal was interrupted; run `{again}` again, which completes it"]
            report.left = made.remove(connection, on_progress)


@contextmanager
def _reporting(report: QualificationReport) -> Generator[None]:
    """Record the end of the block in the report, and the error that ended it."""
    try:
        yield
    except RunnerError as err:
        report.problem = err
    except KeyboardInterrupt:
        report.problem = RunnerError(
            "R-QUALIFY-INTERRUPTED",
            "the qualification was interrupted",
            why="what it made is removed" if not report.left else "some things are left",
            fix="run the qualification again",
        )
    finally:
        report.ended = datetime.now(UTC)
