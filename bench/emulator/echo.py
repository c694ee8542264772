"""The peer of `add_collection`: the server software of the emulator, returning what it receives."""

from __future__ import annotations

import json

import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from batch_emulator.server import bind, url_of, uvicorn_config

# The size of the service's response, so that clients read the same amount of data.
_ADDED = {
    "status": "Success",
    "eTag": "0x8DE28FB2A5C3D40",
    "lastModified": "2026-11-21T11:42:00.123456Z",
    "location": "http://127.0.0.1:8900/jobs/job/tasks/sdk0000",
}


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the JSON of the request, or with a success for each task of a collection."""
    if scope["type"] != "http":
        return
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    document = json.loads(b"".join(parts))
    if scope["path"].endswith("/addtaskcollection"):  # the response that the SDK expects
        results = [{**_ADDED, "taskId": task["id"]} for task in document["value"]]
        document = {"value": results}
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    await Response(text.encode(), 200, media_type="application/json")(scope, receive, send)


if __name__ == "__main__":
    listener = bind("127.0.0.1", 0)
    print(url_of(listener), flush=True)
    config = uvicorn_config(application)
    config.lifespan = "off"
    uvicorn.Server(config).run(sockets=[listener])
