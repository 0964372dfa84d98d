"""Who may load an aLoRA adapter: vLLM with the plugin active, and nobody else.

vLLM before 0.32 ignores the key that makes an adapter an aLoRA and would apply it from the first token: a wrong model,
silently. So the gate is shut first and opened only when everything else is in place.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin.adapter_config import claims_alora
from alora.vllm_plugin.state import STATE


def accept_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``PEFTHelper._validate_features`` that judges an aLoRA by everything but its being one."""

    @functools.wraps(original)
    def _validate_features(self: Any) -> Any:
        plain = copy.copy(self)  # the adapter keeps its key; only this check does not see it
        if getattr(plain, "alora_invocation_tokens", None):
            plain.alora_invocation_tokens = None
        return original(plain)

    return _validate_features


def refuse_patch(original: Callable[..., Any]) -> classmethod:
    """``PEFTHelper.from_local_dir`` that raises for an aLoRA adapter.

    ``original`` is the bound stock classmethod.
    """

    @functools.wraps(original.__func__)  # type: ignore[attr-defined]
    def from_local_dir(cls: Any, lora_path: str, *args: Any, **kwargs: Any) -> Any:
        if claims_alora(lora_path):
            raise AdapterError(
                f"{lora_path} is an aLoRA adapter, and this vLLM would apply it as plain LoRA, from the first token: "
                f"the alora plugin is not active here ({STATE.reason})"
            )
        return original.__func__(cls, lora_path, *args, **kwargs)  # type: ignore[attr-defined]

    return classmethod(from_local_dir)
