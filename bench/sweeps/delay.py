"""Delay what a client and a local service send to each other, like a network to a data centre.

`python -m bench.sweeps.delay TARGET_PORT ROUND_TRIP_MS` prints the port on which it listens.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

from runner.contract import StackOutputs

_CHUNK_BYTES = 256 * 1024


@contextmanager
def delayed(outputs: StackOutputs, round_trip_ms: int) -> Generator[StackOutputs]:
    """Yield outputs with endpoints of the same services, whose answers take longer.

    The delay happens in other processes, because threads of this one would compete with clients.
    """
    with ExitStack() as stack:

        def through_proxy(url: str) -> str:
            port = str(urlsplit(url).port)
            words = [sys.executable, "-m", "bench.sweeps.delay", port, str(round_trip_ms)]
            proxy = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            stack.callback(proxy.terminate)
            line = proxy.stdout.readline() if proxy.stdout else ""
            return url.replace(f":{port}", f":{int(line)}")

        yield replace(
            outputs,
            batch_endpoint=through_proxy(outputs.batch_endpoint),
            blob_endpoint=through_proxy(outputs.blob_endpoint),
        )


async def _forward(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float
) -> None:
    """Send everything from `source` to `sink` after the delay, in order."""
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def send() -> None:
        content = b" "
        while content:
            due, content = await waiting.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            sink.write(content)
        sink.close()

    sending = asyncio.create_task(send())
    content = b" "
    while content:
        content = await source.read(_CHUNK_BYTES)
        waiting.put_nowait((loop.time() + delay_s, content))
    await sending


async def _serve(target_port: int, delay_s: float) -> None:
    async def connect(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target_port)
        both = _forward(source, writer, delay_s), _forward(reader, sink, delay_s)
        await asyncio.gather(*both, return_exceptions=True)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 2000))
