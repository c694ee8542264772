"""What transfers of many files share: watched threads, and tries that go on after a cut."""

from __future__ import annotations

import concurrent.futures
import http.client
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from runner.node.failures import is_disk_full
from runner.node.patience import Patience

POLL_S = 0.2

Item = TypeVar("Item")
Done = TypeVar("Done")


def run_watched(
    work: Callable[[Item], Done],
    items: Iterable[Item],
    look: Callable[[Sequence[Done]], None],
    *,
    threads: int,
    name: str,
) -> None:
    """Do the work in threads; `look` is given what is done, several times a second, and may raise.

    Nobody waits for what runs when something raises: it may be reading from a silent connection.
    """
    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        waiting = {pool.submit(work, item) for item in items}
        while waiting:
            # Not for each one that completes: each wait looks at all of them.
            finished, waiting = concurrent.futures.wait(
                waiting, POLL_S, concurrent.futures.FIRST_EXCEPTION
            )
            look([future.result() for future in finished])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def try_on(patience: Patience, read: Callable[[], None], drop: Callable[[], None]) -> str | None:
    """Call `read` until it returns; after a cut connection `drop` it and go on where it was.

    None, or the last trouble when patience ended. Refusals of storage and a full disk pass through.
    """
    last: Exception | None = None
    for _ in patience.delays():
        try:
            read()
        except (OSError, http.client.HTTPException) as err:
            if isinstance(err, OSError) and is_disk_full(err):
                raise
            drop()
            last = err
        else:
            return None
    return str(last)
