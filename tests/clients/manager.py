"""A job manager task that adds a task to its job with its authentication token."""

import json
import os
import urllib.request

URL = f"{os.environ['AZ_BATCH_ACCOUNT_URL'].rstrip('/')}/jobs/{os.environ['AZ_BATCH_JOB_ID']}/tasks"
TOKEN = os.environ["AZ_BATCH_AUTHENTICATION_TOKEN"]

request = urllib.request.Request(
    f"{URL}?api-version=2024-02-01.19.0",
    json.dumps({"id": "child", "commandLine": "/bin/true"}).encode(),
    {
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": "application/json; odata=minimalmetadata",
    },
)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
with opener.open(request) as answer:
    assert answer.status == 201
