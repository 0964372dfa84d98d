"""Reading in vLLM's own process: one engine request per policy, all on the prefix that the engine caches."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import uuid4

from vllm.lora.request import LoRARequest

from alora.bundle.read import Bundle
from alora.client.engine import label_logprobs, label_params
from alora.errors import BundleError, one_line
from alora.guard.reader import EngineDead, Overloaded, Reading, Served, as_they_come
from alora.prompt.render import Prefix
from alora.wire.native import GuardRequest
from alora.wire.weights import ASKED_WEIGHTS

_LEAST_ID = 2**20  # vLLM counts its own adapters from 1


class EngineReader:
    """Reads from ``client``, vLLM's ``EngineClient``; ``loras`` are the server's LoRA requests by name, those of
    ``bundles`` among them.

    The table is vLLM's own: two requests of one name and two ids would end the engine. Whoever may load adapters there
    can give any name and id other weights, so each request says what weights may answer it, and the engine core checks.
    """

    def __init__(self, client: Any, loras: dict[str, Any], bundles: Sequence[Bundle] = ()) -> None:
        self._client, self._loras = client, loras
        self._own = {item.served_name: (loras[item.served_name], item.served_weights) for item in bundles}

    def read(self, prefix: Prefix, asked: Sequence[Served], request: GuardRequest) -> AsyncGenerator[Reading, None]:
        """See :class:`~alora.guard.reader.Reader`. Cancelling a task aborts its request in the engine."""
        name = f"guard-{uuid4().hex}"
        asking = [self._one(n, prefix, item, request, f"{name}-{n}") for n, item in enumerate(asked)]
        return as_they_come(asking, self.require_running)

    def require_running(self) -> None:
        """See :class:`~alora.guard.reader.Reader`. vLLM leaves requests unanswered when its engine fails or ends."""
        if self._client.errored:
            raise EngineDead(f"the engine is dead: {self._client.dead_error}")

    def trouble(self) -> str | None:
        """See :class:`~alora.guard.reader.Reader`. vLLM's own routes may load and unload by a policy's name."""
        changed = [name for name, (lora, _) in self._own.items() if not _same(self._loras.get(name), lora)]
        if not changed:
            return None
        return (
            f"vLLM's own table has other weights for {', '.join(changed)}, or none; the guard asks for the bundles' own"
        )

    async def _one(self, index: int, prefix: Prefix, item: Served, request: GuardRequest, name: str) -> Reading:
        lora, digest = self._own.get(item.name, (None, ""))
        if lora is None:
            return Reading(index, error=f"{item.name} is not loaded")
        params = label_params(item.suffix)
        params.extra_args = {ASKED_WEIGHTS: digest}
        prompt: dict[str, Any] = {"prompt_token_ids": [*prefix.token_ids, *item.suffix.token_ids]}
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        try:
            answers = self._client.generate(prompt, params, name, lora_request=lora, priority=request.priority)
            async for output in answers:
                if output.finished and output.outputs[0].logprobs:
                    return Reading(index, label_logprobs(item.suffix, output), output.num_cached_tokens or 0)
                if output.finished and output.outputs[0].finish_reason == "abort":  # not by us: it would be cancelled
                    raise EngineDead("the engine is being stopped")
        except EngineDead:
            raise
        except Exception as error:
            self.require_running()
            if getattr(error, "http_status", None) == 503:  # a limit of vLLM's own
                raise Overloaded(f"the engine takes no more requests for now: {error}") from error
            return Reading(index, error=f"the engine refused it: {one_line(error)}")
        return Reading(index, error="the engine ended it without an answer; the server's log says why")

    async def load(self, served: Served, bundle: Bundle) -> None:
        """See :class:`~alora.guard.reader.Reader`. The id comes from the name, so that all processes agree on it.

        What is still loaded, for requests that run with it, stays: a name holds the digest of its weights.
        """
        if served.name in self._own:
            return
        digest = hashlib.sha256(served.name.encode()).hexdigest()
        number = _LEAST_ID + int(digest[:8], 16) % (2**31 - _LEAST_ID)
        others = {lora.lora_int_id: name for name, lora in self._loras.items() if name != served.name}
        if number in others:
            raise BundleError(f"{served.name} and {others[number]} would share an id; export one of them again")
        if (taken := self._loras.get(served.name)) is not None:  # by vLLM's own routes, from whatever folder
            number = taken.lora_int_id
        path = str(bundle.folder.absolute())
        try:
            await self._client.add_lora(LoRARequest(served.name, number, path, load_inplace=taken is not None))
        except Exception as error:
            raise BundleError(f"the engine does not load {served.name}: {error}") from error
        self._loras[served.name] = lora = LoRARequest(served.name, number, path)
        self._own[served.name] = lora, bundle.served_weights

    async def unload(self, name: str) -> None:
        lora, _ = self._own.pop(name, (None, ""))
        if lora is not None:
            if self._loras.get(name) is lora:
                del self._loras[name]
            await self._client.remove_lora(lora.lora_int_id)


def _same(lora: Any, own: Any) -> bool:
    return lora is not None and (lora.lora_int_id, lora.lora_path) == (own.lora_int_id, own.lora_path)
