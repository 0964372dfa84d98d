"""Drift from the bundle's validation histogram, where a bundle has one: in the list of policies and as a metric."""

import asyncio
import math
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from prometheus_client import REGISTRY

from alora.bundle.read import load_bundle
from alora.bundle.write import write_bundle
from alora.guard import exported_metrics as metrics
from alora.guard.core import GuardCore
from alora.guard.reader import Served
from alora.guard.standalone import make_app
from alora.verdict import LEAST, population_stability
from alora.wire.native import GuardRequest
from tests.integration.bundle.conftest import POINT, make_contents
from tests.integration.guard.conftest import MESSAGES, Says


def sure():
    return Says(lambda *_: (50.0, -50.0))


def psi():
    return REGISTRY.get_sample_value("alora_guard_psi", {"policy": "advice"})


def test_the_index_of_the_last_verdicts(base, bundles, renderer, tmp_path):
    counts = (0, 60, *[10] * 8)
    contents = make_contents(base, tmp_path / "adapter", "advice", 0)
    point = replace(POINT, rows=140, histogram=counts)
    write_bundle(replace(contents, operating_point=point), tmp_path / "advice", 3)
    bundle = load_bundle(tmp_path / "advice")
    assert bundle.manifest.operating_point == point
    served = Served.of(bundle)
    guard = GuardCore([served, Served.of(bundles[1])], renderer, sure())
    with TestClient(make_app(guard)) as client:

        def cards():
            return [card["psi"] for card in client.get("/v1/guard/policies").json()["policies"]]

        for _ in range(LEAST - 1):
            client.post("/v1/guard", json={"messages": MESSAGES})
        assert cards() == [None, None]
        assert math.isnan(psi())
        client.post("/v1/guard", json={"messages": MESSAGES})
        wanted = population_stability(counts, [0] * 9 + [LEAST])
        assert cards() == [pytest.approx(wanted), None]  # the other bundle is of an older version
        assert psi() == pytest.approx(wanted)
        assert wanted > 1

    async def serve(*items):
        guard.serve(items)

    asyncio.run(serve(served))
    assert guard.drift.psi(served) == pytest.approx(wanted)
    recalibrated = replace(served, manifest=replace(served.manifest, sha256="another"))
    asyncio.run(serve(recalibrated))
    assert guard.drift.psi(recalibrated) is None  # its probabilities are others
    asyncio.run(serve(Served.of(bundles[1])))
    assert guard.drift.psi(served) is None  # forgotten with its weights
    assert math.isnan(psi())  # an alert on it ends


SYSTEM = [{"role": "developer", "content": "You sell pills."}, *MESSAGES]


@pytest.mark.parametrize(
    ("share", "messages", "unlike", "system"),
    [(0.0, SYSTEM, "true", "read"), (1.0, MESSAGES, "false", "read"), (0.0, MESSAGES, None, "read"),
     (1.0, SYSTEM, None, "read"), (0.5, SYSTEM, None, "read"), (None, SYSTEM, None, "read"),
     (0.0, SYSTEM, None, "leave_out")],
)  # fmt: skip
def test_a_system_turn_that_training_did_not_have_is_counted(bundles, renderer, share, messages, unlike, system):
    def counts():
        return {kind: metrics.UNLIKE.labels("advice", kind)._value.get() for kind in ("true", "false")}

    before, manifest = counts(), replace(bundles[0].manifest, system_share=share, system=system)
    served = replace(Served.of(bundles[0]), manifest=manifest)
    asyncio.run(GuardCore([served], renderer, sure()).answer(GuardRequest(messages=messages)))
    assert {kind: count - before[kind] for kind, count in counts().items()} == {
        kind: float(kind == unlike) for kind in ("true", "false")
    }
