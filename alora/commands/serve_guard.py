"""The guard alone, on a port of this machine, whatever computes its verdicts."""

import os

import uvicorn

from alora.config.schema import ServingSettings
from alora.config.secrets import KEY, open_to_all
from alora.guard.connection import TimedProtocol
from alora.guard.core import GuardCore
from alora.guard.loading import Loader
from alora.guard.standalone import make_app
from alora.notes import note


def serve_guard(settings: ServingSettings, guard: GuardCore, loader: Loader) -> int:
    app = make_app(guard, loader)
    if remark := open_to_all(settings.host, bool(os.environ.get(KEY))):
        note(remark)
    names = ", ".join(item.name for item in guard.served)
    note(f"serving {names} on http://{settings.host}:{settings.port}/v1/guard")
    if remark := loader.remark():
        note(remark)
    uvicorn.run(app, host=settings.host, port=settings.port, log_level="warning", http=TimedProtocol)
    return 0
