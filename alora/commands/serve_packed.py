"""``alora serve serving.scorer=packed``: the guard alone, which computes in this process."""

import os

import uvicorn

from alora.base.limits import longest_input
from alora.base.load import load_base
from alora.bundle.artifact import named_artifacts, read_bundles
from alora.bundle.read import check_bases, load_bundle
from alora.config.schema import Recipe, ServingSettings
from alora.config.secrets import KEY, open_to_all
from alora.guard.admission import admission
from alora.guard.core import GuardCore
from alora.guard.loading import Loader, make_guard
from alora.guard.reading_in_process import PackedReader
from alora.guard.standalone import make_app
from alora.guard.verdicts import show_log
from alora.text import note


def serve(recipe: Recipe) -> int:
    bundles, settings = read_bundles(named_artifacts(recipe), recipe.base, recipe.policies, load_bundle)
    base = load_base(settings)
    check_bases(bundles, base)
    reader = PackedReader(base, bundles)
    serving = recipe.serving
    bounds = admission(serving.queue_requests, serving.queue_tokens, base.model.device.type == "cuda")
    made = make_guard(bundles, base, base.dtype, reader, longest_input(base.model), bounds)
    return serve_guard(serving, *made)


def serve_guard(settings: ServingSettings, guard: GuardCore, loader: Loader) -> int:
    """Answer on a port of this machine until the process is stopped."""
    show_log()
    app = make_app(guard, loader)
    if remark := open_to_all(settings.host, bool(os.environ.get(KEY))):
        note(remark)
    names = ", ".join(item.name for item in guard.served)
    note(f"serving {names} on http://{settings.host}:{settings.port}/v1/guard")
    if remark := loader.remark():
        note(remark)
    # h11 bounds a header to 64 KiB; httptools reads one without end.
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        http="h11",
        timeout_graceful_shutdown=settings.drain_s,
    )
    return 0
