"""What ours is compared with in training: three full-sequence trainers.

They share nothing between policies, so P policies cost P times one. All run as fast as their packages allow: no
gradient checkpointing, no padding, one conversation a batch (on CPU no slower per pair than four), float32 as loaded.

- ``peft``: PEFT's aLoRA in a loop of its own, logits of the last token only, loss over the label tokens.
- ``trainer``: the same model in ``transformers.Trainer`` as it comes, with its loss over the vocabulary.
- ``trl``: TRL's ``SFTTrainer`` with settings that make it right and fast: ``max_length=None`` (1024 would cut the
  invocation off), loss on the answer only, no bfloat16, no checkpointing.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Trainer, TrainingArguments

from alora.activation import peft_offset
from alora.adapter.folder import AdapterSpec, AdapterWeights, peft_config
from alora.bench.material import LABELS
from alora.bench.packed import Outcome, TrainingPrompts, trainer_options
from alora.bench.trials import Piece
from alora.errors import MissingDependency

IGNORED = -100  # label of positions that a language-model loss leaves out


class PeftTrainer:
    """PEFT's aLoRA over the whole prompt, in as little code as possible; and what the other two have in common."""

    objective, shared_tokens = "labels", 0

    def __init__(
        self, model: PeftModel, adapter: AdapterWeights, prompts: TrainingPrompts, scratch: Path, policy: int = 0
    ) -> None:
        self._model, self._prompts, self._scratch = model, prompts, scratch
        self.train_policy(adapter, policy)

    def train_policy(self, adapter: AdapterWeights, policy: int) -> None:
        put_adapter(self._model, adapter)
        self._policy, prompt, device = policy, self._prompts.prompt(policy), self._model.device
        self._inputs: dict[str, Any] = {
            "input_ids": torch.tensor([prompt], device=device), "logits_to_keep": 1, "use_cache": False,
            "alora_offsets": [peft_offset(len(prompt), len(self._prompts.prefix_ids))],
        }  # fmt: skip
        self._label = self._prompts.labels[policy]

    def step(self) -> float:
        """Forward with the last token's logits, and backward."""
        logits_BL = self._model.train()(**self._inputs).logits[:, -1, list(LABELS)].float()
        loss = torch.nn.functional.cross_entropy(logits_BL, torch.tensor([self._label], device=logits_BL.device))
        loss.backward()
        return loss.item()

    def pieces(self) -> list[Piece]:
        """The one pair, from the tokens that the model is given."""
        return [Piece.of(self._inputs["input_ids"][0].tolist(), (LABELS[self._label],), self._policy)]

    def clear(self) -> None:
        self._model.zero_grad(set_to_none=True)

    def outcome(self) -> Outcome:
        self.clear()
        loss, gradients = self.step(), {}
        for name, module in self._model.named_modules():
            if hasattr(module, "lora_A") and "default" in module.lora_A:
                a, b = module.lora_A["default"].weight.grad, module.lora_B["default"].weight.grad
                if a is not None and b is not None:
                    gradients[name.removeprefix("base_model.model.")] = (a.clone(), b.clone())
        self.clear()
        return Outcome(self.pieces()[0], self.objective, loss, gradients)


class HubTrainer(PeftTrainer):
    """``transformers.Trainer``: its ``training_step`` on the answer as the only labelled token."""

    objective = "vocabulary"

    def train_policy(self, adapter: AdapterWeights, policy: int) -> None:
        put_adapter(self._model, adapter)
        self._policy = policy
        self._trainer = self._make_trainer((*self._prompts.prompt(policy), self._prompts.answer(policy)))
        self._trainer.current_gradient_accumulation_steps = 1  # set by the training loop, which is not timed
        batch = next(iter(self._trainer.get_train_dataloader()))
        self._inputs = {name: value.to(self._model.device) for name, value in batch.items()}

    def _make_trainer(self, row: tuple[int, ...]) -> Trainer:
        labels = [IGNORED] * (len(row) - 1) + [row[-1]]
        rows: Any = [{"input_ids": list(row), "attention_mask": [1] * len(row), "labels": labels}]
        arguments = TrainingArguments(**trainer_options(self._scratch, self._model.device))
        return Trainer(model=self._model, args=arguments, train_dataset=rows)

    def step(self) -> float:
        """The trainer's own step: prepare, forward, loss, backward."""
        items = torch.tensor(1, device=self._model.device)
        return self._trainer.training_step(self._model, dict(self._inputs), num_items_in_batch=items).item()

    def pieces(self) -> list[Piece]:
        """The prompt is what stands before the labelled token."""
        ids, labels = self._inputs["input_ids"][0].tolist(), self._inputs["labels"][0].tolist()
        at = next((index for index, label in enumerate(labels) if label != IGNORED), len(labels))
        return [Piece.of(ids[:at], tuple(labels[at : at + 1]), self._policy)]


class TrlTrainer(HubTrainer):
    """TRL's ``SFTTrainer``. It patches the model that it is given, so give it one of its own."""

    def _make_trainer(self, row: tuple[int, ...]) -> Trainer:
        try:
            from trl import SFTConfig, SFTTrainer  # pyright: ignore[reportPrivateImportUsage]
        except ImportError as error:
            text = "the baseline 'trl' needs the package trl; install alora-toolkit[baselines], or leave it out with"
            raise MissingDependency(f"{text} bench.baselines=[peft,trainer]") from error
        options: dict[str, Any] = trainer_options(self._scratch, self._model.device) | {"remove_unused_columns": True}
        options |= {"max_length": None, "completion_only_loss": True, "gradient_checkpointing": False, "bf16": False}
        config = SFTConfig(**options)
        rows = Dataset.from_dict({"input_ids": [row], "completion_mask": [[0] * (len(row) - 1) + [1]]})
        words = _numbers_as_words(self._model.config.vocab_size)
        return SFTTrainer(model=self._model, args=config, train_dataset=rows, processing_class=words)


TRAINERS = {"peft": PeftTrainer, "trainer": HubTrainer, "trl": TrlTrainer}


def peft_model(base: PreTrainedModel, spec: AdapterSpec) -> PeftModel:
    """A copy of ``base`` with the stock attention under PEFT, ready for :func:`put_adapter`."""
    copied = copy.deepcopy(base)
    copied.set_attn_implementation("sdpa")
    model = get_peft_model(copied, peft_config(spec))
    assert isinstance(model, PeftModel)
    return model


@torch.no_grad()
def put_adapter(model: PeftModel, adapter: AdapterWeights) -> None:
    modules = dict(model.named_modules())
    for name, (a_RD, b_OR) in adapter.tensors.items():
        layer: Any = modules[f"base_model.model.{name}"]
        layer.lora_A["default"].weight.copy_(a_RD)
        layer.lora_B["default"].weight.copy_(b_OR)


def _numbers_as_words(vocab: int) -> Any:
    """A tokenizer for a trainer that insists on one; the rows hold token ids already."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {str(number): number for number in range(3, vocab)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
