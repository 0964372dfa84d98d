"""The guard inside stock vLLM's server, by its entry-point group ``vllm.endpoint_plugins`` (0.26 on).

vLLM loads it when ``VLLM_PLUGINS`` names ``alora``; its own key, TLS, metrics and drain hold for these routes, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from alora.errors import AloraError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from alora.guard.admission import Admission

_logger = logging.getLogger("vllm.alora")


class GuardEndpoint:
    """vLLM's ``EndpointPlugin``: routes first, and the guard behind them once the engine is up."""

    name = "alora"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Mount the routes; they answer 503 until :meth:`init_state`."""
        from alora.guard.routes import mount  # FastAPI, which only a server needs

        mount(app)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Serve the bundles among the server's LoRA modules. What keeps the guard from serving, its routes report."""
        from alora.guard import exported_metrics as metrics
        from alora.guard.mounted import guard_of  # vLLM loads this file long before its engine is up
        from alora.guard.verdicts import show_log
        from alora.vllm_plugin import seeds

        show_log()
        seeds.refuse_on_cpu()  # by vLLM's own routes: the guard has to stay up
        try:
            state.alora_guard, state.alora_loader = guard_of(engine_client, state, args)
            _answer_before_the_end(engine_client, state.alora_guard.admission)
            await state.alora_loader.follow()
            state.alora_watching = asyncio.create_task(state.alora_loader.watch())
        except AloraError as error:
            state.alora_guard_refusal = f"the guard is not served: {error}"
            metrics.TROUBLE.set(1)
            _logger.error("%s", state.alora_guard_refusal)


def _answer_before_the_end(engine_client: Any, admission: Admission) -> None:
    """Make vLLM's shutdown, which it calls from a thread at SIGTERM, wait for what the guard has under way.

    vLLM's own drain ends what it has, and takes no more: a conversation that is rendered, or read window by window,
    would lose its verdicts.
    """
    stop = engine_client.shutdown

    def shutdown(timeout: float | None = None) -> None:
        admission.closing, end = True, time.monotonic() + (timeout or 0)
        while admission.under_way and time.monotonic() < end and not _in_a_loop():
            time.sleep(0.05)
        stop(timeout=timeout and max(0.0, end - time.monotonic()))

    engine_client.shutdown = shutdown


def _in_a_loop() -> bool:
    """Whether this thread is one whose loop answers requests, and must not wait for them."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
