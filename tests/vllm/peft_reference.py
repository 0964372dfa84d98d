"""PEFT's own aLoRA, over the whole sequence: what every vLLM answer is held against."""

from collections.abc import Sequence

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.vllm.toy_models import ToyAdapter


class PeftReference:
    """Full-vocabulary logprobs and greedy continuations of a base with and without its adapters."""

    def __init__(self, base: str, adapters: Sequence[ToyAdapter], dtype: torch.dtype = torch.float32) -> None:
        self._base = AutoModelForCausalLM.from_pretrained(base, dtype=dtype).eval()
        self._models = {}
        for adapter in adapters:
            model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
            model = PeftModel.from_pretrained(model, adapter.path, autocast_adapter_dtype=False)
            self._models[adapter.name] = model.eval()

    @torch.no_grad()
    def logprobs_V(self, token_ids: Sequence[int], adapter: ToyAdapter | None = None) -> torch.Tensor:
        """Logprobs of the token after ``token_ids``."""
        model = self._base if adapter is None else self._models[adapter.name]
        logits_BTV = model(input_ids=torch.tensor([list(token_ids)])).logits
        return torch.log_softmax(logits_BTV[0, -1].float(), dim=-1)

    def greedy(self, token_ids: Sequence[int], adapter: ToyAdapter | None, steps: int) -> list[int]:
        """Greedy continuation; the activation is found anew each step, in the prompt that has grown."""
        ids = list(token_ids)
        for _ in range(steps):
            ids.append(int(self.logprobs_V(ids, adapter).argmax()))
        return ids[len(token_ids) :]
