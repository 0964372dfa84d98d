"""The guard inside stock vLLM's server, by its entry-point group ``vllm.endpoint_plugins`` (0.26 on).

vLLM loads it when ``VLLM_PLUGINS`` names ``alora``; its own key, TLS, metrics and drain hold for these routes, too.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from alora.errors import AloraError

if TYPE_CHECKING:
    from fastapi import FastAPI

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
        from alora.guard.mounted import guard_of  # vLLM loads this file long before its engine is up
        from alora.vllm_plugin import seeds

        seeds.refuse_on_cpu()  # by vLLM's own routes: the guard has to stay up
        try:
            state.alora_guard, state.alora_loader = guard_of(engine_client, state, args)
            await state.alora_loader.follow()
        except AloraError as error:
            state.alora_guard_refusal = f"the guard is not served: {error}"
            _logger.error("%s", state.alora_guard_refusal)
