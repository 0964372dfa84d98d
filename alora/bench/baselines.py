"""What ours is compared with: PEFT's full-sequence aLoRA, alone, in ``transformers.Trainer`` and in TRL's trainer.

A full-sequence arm trains one policy: nothing of it is shared between policies, so P policies cost P times one. All
three are made as kind as their packages allow: no gradient checkpointing, no padding, a batch of one conversation
(on CPU no slower per pair than a batch of four), float32 as loaded.

- ``peft``: PEFT's model in a loop of its own, logits of the last token only, loss over the label tokens.
- ``trainer``: the same model in ``transformers.Trainer`` as it comes, with its loss over the vocabulary.
- ``trl``: TRL's ``SFTTrainer`` with what would make it wrong or slow mended: ``max_length=None`` (1024 would cut the
  invocation off), loss on the answer only, no bfloat16, no checkpointing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel, Trainer

from alora.activation import peft_offset
from alora.adapter.folder import AdapterSpec, AdapterWeights
from alora.bench.arms import Gradients, Outcome, Work, quiet_arguments, trainer_options
from alora.bench.shapes import copy_of
from alora.bench.workload import LABELS, Workload, pair_digest
from alora.errors import MissingDependency

IGNORED = -100  # label of positions that a language-model loss leaves out


def peft_model(base: PreTrainedModel, spec: AdapterSpec) -> PeftModel:
    """A copy of ``base`` under PEFT, ready for :func:`put_adapter`."""
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,  # pyright: ignore[reportArgumentType] PEFT accepts any number
        lora_dropout=0.0,
        target_modules=list(spec.targets),
        alora_invocation_tokens=list(spec.invocation_ids) if spec.invocation_ids is not None else None,
    )
    model = get_peft_model(copy_of(base), config)
    assert isinstance(model, PeftModel)
    return model


@torch.no_grad()
def put_adapter(model: PeftModel, adapter: AdapterWeights) -> None:
    """Overwrite the weights of PEFT's adapter in place."""
    modules = dict(model.named_modules())
    for name, (a_RD, b_OR) in adapter.tensors.items():
        layer: Any = modules[f"base_model.model.{name}"]
        layer.lora_A["default"].weight.copy_(a_RD)
        layer.lora_B["default"].weight.copy_(b_OR)


class _FullSequenceArm:
    """Common ground: one PEFT model that trains one policy of the workload."""

    objective: str

    def __init__(self, name: str, model: PeftModel, adapter: AdapterWeights, workload: Workload, policy: int) -> None:
        self.name, self._model, self._workload = name, model, workload
        self.train_policy(adapter, policy)

    def train_policy(self, adapter: AdapterWeights, policy: int) -> None:
        """Go over to another policy."""
        self._policy = policy
        put_adapter(self._model, adapter)

    def step(self) -> None:
        """One forward and backward over the whole prompt."""
        self.loss()

    def loss(self) -> float:
        raise NotImplementedError

    def work(self) -> list[Work]:
        raise NotImplementedError

    def clear(self) -> None:
        """Drop the adapter's gradients."""
        self._model.zero_grad(set_to_none=True)

    def outcome(self) -> Outcome:
        """Loss and gradients of one step of the arm itself."""
        self.clear()
        loss = self.loss()
        found = Outcome(self.work()[0].digest, self.objective, loss, self._gradients())
        self.clear()
        return found

    def _gradients(self) -> Gradients:
        found = {}
        for name, module in self._model.named_modules():
            if hasattr(module, "lora_A") and "default" in module.lora_A:
                pair = (module.lora_A["default"].weight.grad, module.lora_B["default"].weight.grad)
                if pair[0] is not None and pair[1] is not None:
                    found[name.removeprefix("base_model.model.")] = (pair[0].clone(), pair[1].clone())
        return found


class PeftArm(_FullSequenceArm):
    """PEFT's aLoRA over the whole prompt, in as little code as possible."""

    objective = "labels"

    def train_policy(self, adapter: AdapterWeights, policy: int) -> None:
        """Go over to another policy."""
        super().train_policy(adapter, policy)
        device, prompt = self._model.device, self._workload.prompt(policy)
        self._ids_BT = torch.tensor([prompt], device=device)
        self._label_B = torch.tensor([self._workload.labels[policy]], device=device)
        self._labels_L = torch.tensor(LABELS, device=device)
        self._offsets = [peft_offset(len(prompt), len(self._workload.prefix_ids))]

    def loss(self) -> float:
        """Forward with the last token's logits, and backward."""
        self._model.train()
        output = self._model(input_ids=self._ids_BT, logits_to_keep=1, use_cache=False, alora_offsets=self._offsets)
        loss = torch.nn.functional.cross_entropy(output.logits[:, -1, self._labels_L].float(), self._label_B)
        loss.backward()
        return loss.item()

    def work(self) -> list[Work]:
        """The one pair."""
        prompt = self._ids_BT[0].tolist()
        return [Work(pair_digest(prompt, LABELS[int(self._label_B)]), len(prompt))]


class TrainerArm(_FullSequenceArm):
    """``transformers.Trainer``: its ``training_step`` on the answer as the only labelled token."""

    objective = "vocabulary"

    def __init__(
        self, name: str, model: PeftModel, adapter: AdapterWeights, workload: Workload, scratch: Path, policy: int = 0
    ) -> None:
        super().__init__(name, model, adapter, workload, policy)
        self._trainer = self._make_trainer(scratch)
        self._trainer.current_gradient_accumulation_steps = 1  # set by the training loop, which is not timed
        self._inputs = self._first_batch()

    def _make_trainer(self, scratch: Path) -> Trainer:
        return Trainer(model=self._model, args=quiet_arguments(scratch, self._model.device))

    def _first_batch(self) -> dict[str, torch.Tensor]:
        prompt, answer = self._workload.prompt(self._policy), self._workload.answer(self._policy)
        device = self._model.device
        return {
            "input_ids": torch.tensor([[*prompt, answer]], device=device),
            "attention_mask": torch.ones(1, len(prompt) + 1, dtype=torch.long, device=device),
            "labels": torch.tensor([[IGNORED] * len(prompt) + [answer]], device=device),
        }

    def loss(self) -> float:
        """The trainer's own step: prepare, forward, loss, backward."""
        one = torch.tensor(1, device=self._model.device)
        return self._trainer.training_step(self._model, dict(self._inputs), num_items_in_batch=one).item()

    def work(self) -> list[Work]:
        """The prompt is what stands before the labelled token."""
        found = []
        for ids, labels in zip(self._inputs["input_ids"].tolist(), self._inputs["labels"].tolist(), strict=True):
            place = next((place for place, label in enumerate(labels) if label != IGNORED), len(labels))
            answer = labels[place] if place < len(labels) else IGNORED
            found.append(Work(pair_digest(ids[:place], answer), place))
        return found


class TrlArm(TrainerArm):
    """TRL's ``SFTTrainer``. It patches the model that it is given, so give it one of its own."""

    def __init__(self, *args: Any, max_length: int | None = None, **kwargs: Any) -> None:
        self._max_length = max_length
        super().__init__(*args, **kwargs)

    def _make_trainer(self, scratch: Path) -> Trainer:
        try:
            from trl import SFTConfig, SFTTrainer  # pyright: ignore[reportPrivateImportUsage]
        except ImportError as error:
            raise MissingDependency(
                "the arm 'trl' needs the package trl; install alora-toolkit[baselines], or leave it out with "
                "bench.baselines=[peft,trainer]"
            ) from error
        from datasets import Dataset

        prompt, answer = self._workload.prompt(self._policy), self._workload.answer(self._policy)
        row = {"input_ids": [[*prompt, answer]], "completion_mask": [[0] * len(prompt) + [1]]}
        options: dict[str, Any] = trainer_options(scratch, self._model.device)
        options["remove_unused_columns"] = True
        config = SFTConfig(
            **options,
            max_length=self._max_length,
            completion_only_loss=True,
            gradient_checkpointing=False,
            bf16=False,
        )
        return SFTTrainer(
            model=self._model,
            args=config,
            train_dataset=Dataset.from_dict(row),
            processing_class=_numbers_as_words(self._model.config.vocab_size),
        )

    def _first_batch(self) -> dict[str, torch.Tensor]:
        return {name: value.to(self._model.device) for name, value in next(iter(self._loader())).items()}

    def _loader(self) -> Any:
        return self._trainer.get_train_dataloader()


def _numbers_as_words(vocab: int) -> Any:
    """A tokenizer for a trainer that insists on one; the rows hold token ids already."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {str(number): number for number in range(3, vocab)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
