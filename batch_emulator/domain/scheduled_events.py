"""The instance metadata service of a node, as far as Scheduled Events go (VM docs).

On Azure it answers at `http://169.254.169.254`. Here each node has a base of its own, which its
tasks find in `BATCH_EMULATOR_IMDS`; below it paths, headers and documents are the same, so that
code works on both: `${BATCH_EMULATOR_IMDS:-http://169.254.169.254}/metadata/scheduledevents`.
The base holds a word that only tasks of the node know, for acknowledging an event evicts.
"""

from __future__ import annotations

import hashlib
import hmac

from batch_emulator.domain.model import Json, Node, key_of
from batch_emulator.domain.values import http_date

VARIABLE = "BATCH_EMULATOR_IMDS"
PATH = "/_emulator/imds"
VERSIONS = ("2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
_DESCRIPTION = "The spot virtual machine is being evicted"


def secret(key: str, pool_id: str, node_id: str) -> str:
    """The word in a node's base; it comes out of the account key, so that a restart keeps it."""
    text = f"imds/{key_of(pool_id)}/{key_of(node_id)}"
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]


def base_url(account_url: str, key: str, pool_id: str, node_id: str) -> str:
    """What stands for `http://169.254.169.254` on a node."""
    return f"{account_url}{PATH}/{pool_id}/{node_id}/{secret(key, pool_id, node_id)}"


def document(node: Node) -> Json:
    """What `GET /metadata/scheduledevents` answers; its incarnation changes with the events."""
    notice = node.notice
    if notice is None:
        return {"DocumentIncarnation": 2 * node.lives - 1, "Events": []}
    event = {
        "EventId": notice.event_id,
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": [node.id],
        "EventStatus": "Scheduled",
        "NotBefore": http_date(notice.not_before),
        "Description": _DESCRIPTION,
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return {"DocumentIncarnation": 2 * node.lives, "Events": [event]}
