"""A LoRA request that carries its own activation index from the engine core to every worker.

Imported only after vLLM is. Unpickling in a process where the plugin is not active raises, so a worker that would apply
the adapter to the prefix as well never sees one.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin import compat
from alora.vllm_plugin.adapter_config import claims_alora
from alora.vllm_plugin.adapter_record import AdapterRecord
from alora.vllm_plugin.state import require_active

_LoRARequest: Any = compat.lora_request_class()
_NUMBER = re.compile(r"\d+")


class CarriedLoRARequest(_LoRARequest):
    """``vllm.lora.request.LoRARequest`` plus what this one request needs; id and path are the record's own.

    Plain LoRA is the case ``activation_index == 0``: every token is adapted and every block is the adapter's own.
    """

    activation_index: int = 0
    weights_digest: str = ""
    record: Any = None  # keeps the copy while the request lives; stays in the engine core

    # By id, under which the workers keep the weights. Upstream compares names: an adapter that is reloaded under its
    # old name while its last request still runs would vanish from the batch and end the engine.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, CarriedLoRARequest) and self.lora_int_id == other.lora_int_id

    def __hash__(self) -> int:
        return hash(self.lora_int_id)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "record"}
        return _rebuild, (values,)


def _rebuild(values: dict[str, Any]) -> CarriedLoRARequest:
    require_active()
    return CarriedLoRARequest(**values)


def carry(lora_request: Any, record: AdapterRecord, activation_index: int) -> CarriedLoRARequest:
    """A copy of ``lora_request`` (which stays as it is) that names the record's weights and carries the activation."""
    values = {name: getattr(lora_request, name) for name in _LoRARequest.__struct_fields__}
    # Never in place: what a number means to the workers never changes.
    values.update(lora_int_id=record.number, lora_path=record.copy, load_inplace=False)
    return CarriedLoRARequest(**values, activation_index=activation_index, weights_digest=record.digest, record=record)


def _require_layers(name: str, loras: dict[str, Any], manager: Any) -> None:
    """AdapterError for a layer that the base lacks or that is left out by ``lora_target_modules``, which vLLM passes
    over, or one of another width, of whose slot it leaves the rest zero. Next to layers of the text's, those of a
    part that vLLM never adapts, as of images, may be."""
    base, only = compat.layer_widths(manager), compat.adapted_alone(manager)
    lost = [layer for layer in loras if layer not in base] if compat.has_all_layers() else []
    if len(lost) < len(loras) and not only:
        kinds = {_NUMBER.sub("0", layer) for layer in base}
        lost = [layer for layer in lost if _NUMBER.sub("0", layer) in kinds]
    if lost:
        remedy = "start vLLM without lora_target_modules" if only else "train it on this base"
        raise AdapterError(f"aLoRA adapter {name!r} does not fit this base, which has no layer {lost[0]}; {remedy}")
    for layer, weights in loras.items():
        columns, rows = base.get(layer, (None, None))
        found = weights.lora_a.shape[1], weights.lora_b.shape[0]
        if (columns or found[0], rows or found[1]) != found:
            raise AdapterError(
                f"aLoRA adapter {name!r} does not fit this base: {layer} takes {found[0]} and gives {found[1]}, "
                f"the base's layer {columns} and {rows} values; train the adapter on this base"
            )


def load_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``WorkerLoRAManager._load_adapter`` that refuses an aLoRA of another base."""

    @functools.wraps(original)
    def _load_adapter(self: Any, lora_request: Any) -> Any:
        loaded = original(self, lora_request)
        if claims_alora(lora_request.lora_path):
            _require_layers(lora_request.lora_name, loaded.loras, self)
        return loaded

    return _load_adapter
