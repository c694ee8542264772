"""Automatic scaling of pools."""

from __future__ import annotations

from batch_emulator.call import Call, Reply, entity_headers
from batch_emulator.model import Pool
from batch_emulator.transitions import autoscale
from batch_emulator.wire.autoscale import check_formula, check_scaling
from batch_emulator.wire.bodies import require

_RUN = "Microsoft.Azure.Batch.Protocol.Entities.AutoScaleRun"


def enable(call: Call) -> Reply:
    """Pool_EnableAutoScale: settings are judged before the pool's state, as the service does."""
    pool = call.pool()
    call.check(pool.etag, pool.modified)
    body = call.json()
    account = call.emulator.account
    check_scaling(body)
    autoscale.enable(account, pool, body, call.now)
    return Reply(200, None, _headers(call, pool))


def disable(call: Call) -> Reply:
    """Pool_DisableAutoScale."""
    pool = call.pool()
    autoscale.disable(call.emulator.account, pool, call.now)
    return Reply(200, None, _headers(call, pool))


def evaluate(call: Call) -> Reply:
    """Pool_EvaluateAutoScale: 200 also when the evaluation fails (seen on the service)."""
    pool = call.pool()
    body = call.json()
    require(body, "autoScaleFormula")
    account, text = call.emulator.account, body["autoScaleFormula"]
    check_formula(text)
    run = autoscale.preview(account, pool, text, call.now)
    metadata = {"odata.metadata": f"{call.base_url}/$metadata#{_RUN}"}
    return Reply(200, {**metadata, **run}, _headers(call, pool))


def _headers(call: Call, pool: Pool) -> dict[str, str]:
    return entity_headers(pool.etag, pool.modified) | call.data_service_id()
