"""The guard's own Python for each policy, answer as JSON included and the conversation's rendering left out.

    python scripts/guard_python_cost.py BATTERY --policies 5 20 100

Median milliseconds of 100 requests to a reader that answers at once; the battery's first bundle stands for all.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from alora.base.stored import DescribedBase, load_tokenizer
from alora.bundle.read import load_battery
from alora.config.schema import BaseSettings
from alora.guard.core import GuardCore
from alora.guard.reader import Reading, Served
from alora.wire.native import GuardRequest

REQUESTS = 100


class AtOnce:
    """A reader without a model."""

    async def read(self, _prefix: Any, asked: Any, _request: Any) -> Any:
        for index in range(len(asked)):
            yield Reading(index, (0.3, -0.2))


async def own_ms(one: Served, renderer: Any, policies: int) -> float:
    """Milliseconds a policy."""
    policy, manifest = one.policy, one.manifest
    many = [replace(one, manifest=replace(manifest, policy=replace(policy, id=f"policy{n}"))) for n in range(policies)]
    guard, taken = GuardCore(many, renderer, AtOnce()), list[float]()  # pyright: ignore[reportArgumentType]
    request = GuardRequest(messages=[{"role": "user", "content": "Where is my parcel?"}])
    for _ in range(REQUESTS):
        start = time.process_time()
        response = await guard.answer(request)
        response.model_dump_json()
        taken.append((time.process_time() - start) * 1000 - response.timing_ms.render)
    return median(taken) / policies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("battery", type=Path)
    parser.add_argument("--base", help="where the base lies, if the battery's was a local folder")
    parser.add_argument("--policies", type=int, nargs="+", default=[5, 20, 100])
    given = parser.parse_args()
    bundle = load_battery(given.battery)[0]
    settings = bundle.base_settings(BaseSettings(source=given.base))
    base = DescribedBase(load_tokenizer(settings), bundle.manifest.base.fingerprint, str(settings.source))
    for count in given.policies:
        took = asyncio.run(own_ms(Served.of(bundle), bundle.renderer(base), count))
        sys.stdout.write(f"{count} policies: {took:.3f} ms a policy\n")


if __name__ == "__main__":
    main()
