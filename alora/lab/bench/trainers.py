"""Training steps on equal pairs: ours, packed, and full-sequence trainers that it is compared with.

The baselines share nothing between policies, so P policies cost P times one. All run as fast as their packages allow:
no gradient checkpointing, float32 as loaded, prompts of one length, so that no batch holds padding.

- ``peft``: PEFT's aLoRA in a loop of its own, logits of the last token only, loss over the label tokens;
  ``peft_lora``: a standard LoRA in its place; ``peft_batch``, ``peft_lora_batch``: :data:`BATCH` conversations at a
  time, with the attention mask that a collator gives a padded batch.
- ``trl``: the same aLoRA in TRL's ``SFTTrainer``, whose step and loss over the vocabulary are those of
  ``transformers.Trainer``, with settings that make it right and fast: ``max_length=None`` (1024 would cut the
  invocation off), loss on the answer only, no bfloat16, no checkpointing.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from datasets import Dataset
from peft import PeftModel
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainingArguments

from alora.activation import peft_offset
from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterWeights
from alora.config.schema import TrainingSettings
from alora.lab.bench.material import LABELS, pairs_of, piece_of, some_pairs
from alora.lab.bench.trials import Piece
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from alora.prefix.store import PrefixStore
from alora.training.examples import Batch
from alora.training.model import SharedPrefixModel
from alora.training.standings import Tracker
from alora.training.trainer import SharedPrefixTrainer
from alora.training.trl_engine import IGNORED, layers, put_adapter, trl_package

PASS_TOKENS = TrainingSettings().max_suffix_tokens  # of a packed pass
Gradients = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


def difference(ours: Gradients, reference: Gradients) -> float:
    """Largest relative difference of a gradient matrix; infinite where they cannot be compared."""
    if not reference or ours.keys() != reference.keys():
        return math.inf
    apart = []
    for name, theirs in reference.items():
        for mine, wanted in zip(ours[name], theirs, strict=True):
            norm = wanted.norm().item()
            apart.append((mine.to(wanted.dtype) - wanted).norm().item() / norm if norm > 0 else math.inf)
    return max(apart) if all(map(math.isfinite, apart)) else math.inf  # max() passes over NaN


class PackedTrainer:
    """Ours: P policies behind one prefix, by alora's own training step; ``store`` keeps prefix KV between steps."""

    def __init__(
        self, base: PreTrainedModel, adapters: Sequence[AdapterWeights], batch: Batch, scratch: Path,
        max_suffix_tokens: int = PASS_TOKENS, store: PrefixStore | None = None,
    ) -> None:  # fmt: skip
        self.batch, self._bank = batch, Bank(base, adapters, trainable=True)
        self._model = SharedPrefixModel(PackedModel(base, self._bank), store)
        self._ran: list[tuple[Sequence[tuple[int, ...]], Sequence[Pair]]] = []  # prefixes and pairs of each pass
        self._model.register_forward_pre_hook(self._note, with_kwargs=True)
        self._trainer = SharedPrefixTrainer(
            model=self._model, args=TrainingArguments(**trainer_options(scratch, base.device)),
            tracker=Tracker(self._bank, patience=0), max_suffix_tokens=max_suffix_tokens,
        )  # fmt: skip
        self._trainer.current_gradient_accumulation_steps = 1  # set by the training loop, which is not timed

    def on(self, batch: Batch) -> Self:
        """The same trainer on other pairs."""
        other = copy.copy(self)
        other.batch = batch
        return other

    def step(self) -> None:
        """Prefix once without gradient, then all suffixes, pass by pass."""
        self._trainer.training_step(self._model, {"batch": self.batch})

    def clear(self) -> None:
        """Drop the gradients and the record of what ran, so that every step starts alike."""
        self._bank.zero_grad(set_to_none=True)
        self._ran.clear()

    def _note(self, module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        # two references a pass cost no time; a pass without gradient trains nothing and does not count
        if torch.is_grad_enabled():
            self._ran.append((given["prefixes"], given["pairs"]))

    def pieces(self) -> list[Piece]:
        """The pairs that the model ran since :meth:`clear`."""

        def key(prefixes: Sequence[tuple[int, ...]], pair: Pair) -> tuple[object, ...]:
            return prefixes[pair.prefix], pair.policy, pair.suffix_ids

        pairs = zip(self.batch.pairs, self.batch.labels, strict=True)
        labels = {key(self.batch.prefixes, pair): label for pair, label in pairs}
        ran = [(prefixes, pair) for prefixes, pairs in self._ran for pair in pairs]
        return [piece_of(prefixes, pair, labels.get(key(prefixes, pair), 0)) for prefixes, pair in ran]

    def shared(self) -> list[int]:
        """Tokens of each of them that an earlier one of its conversation has computed."""
        seen, tokens = set[tuple[int, ...]](), list[int]()
        for prefix in (prefixes[pair.prefix] for prefixes, pairs in self._ran for pair in pairs):
            tokens.append(len(prefix) if prefix in seen else 0)
            seen.add(prefix)
        return tokens

    def outcomes(self, policies: Sequence[int]) -> tuple[Sequence[Gradients], list[int]]:
        """Gradients of some policies from one step; and the policies that got no finite gradient."""
        self.clear()
        self.step()
        outcomes = [
            {name: (a.clone(), b.clone()) for name, (a, b) in self.gradients(policy).items()} for policy in policies
        ]
        untrained = []
        for policy in sorted({pair.policy for pair in self.batch.pairs}):
            norms = torch.stack([half.norm() for pair in self.gradients(policy).values() for half in pair])
            untrained += [] if (norms.isfinite() & (norms > 0)).all() else [policy]
        self.clear()
        return outcomes, untrained

    def gradients(self, policy: int) -> Gradients:
        """By module; they are overwritten by the next step."""
        return self._bank.gradients(policy)

    def close(self) -> None:
        self._bank.release()


def trainer_options(scratch: Path, device: torch.device) -> dict[str, Any]:
    """Options of every trainer: batch of one conversation, float32 as loaded, nothing written."""
    return {
        "output_dir": str(scratch), "per_device_train_batch_size": 1, "report_to": [], "save_strategy": "no",
        "logging_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False, "remove_unused_columns": False,
        "label_names": ["labels"], "use_cpu": device.type == "cpu",
    }  # fmt: skip


class PeftTrainer:
    """PEFT's aLoRA, or LoRA where ``adapter`` is one, over ``rows`` whole prompts of a policy at a time."""

    def __init__(self, model: PeftModel, adapter: AdapterWeights, batch: Batch, scratch: Path, rows: int = 1) -> None:
        self._model, self._batch, self._scratch, self._rows = model, batch, scratch, rows
        self.train_policy(adapter, 0)

    def train_policy(self, adapter: AdapterWeights, policy: int) -> None:
        """Go on with the first pairs of another policy, and its adapter."""
        put_adapter(self._model, adapter)
        self._adapter, self._policy = adapter, policy
        self._take(pairs_of(self._batch, policy)[: self._rows])

    def _take(self, chosen: Sequence[int]) -> None:
        batch = some_pairs(self._batch, chosen)
        prompts = [prefix + pair.suffix_ids for prefix, pair in zip(batch.prefixes, batch.pairs, strict=True)]
        ids_BT = torch.tensor(prompts, device=self._model.device)
        self._labels = torch.tensor(batch.labels, device=ids_BT.device)
        self._inputs: dict[str, Any] = {"input_ids": ids_BT, "logits_to_keep": 1, "use_cache": False}
        if len(chosen) > 1:
            self._inputs["attention_mask"] = torch.ones_like(ids_BT)
        if self._adapter.spec.activated:
            ends = zip(prompts, batch.prefixes, strict=True)
            self._inputs["alora_offsets"] = [peft_offset(len(prompt), len(prefix)) for prompt, prefix in ends]

    def step(self) -> None:
        """Forward with the last token's logits, and backward."""
        logits_BL = self._model.train()(**self._inputs).logits[:, -1, list(LABELS)].float()
        torch.nn.functional.cross_entropy(logits_BL, self._labels, reduction="sum").backward()

    def pieces(self) -> list[Piece]:
        """The pairs, from the tokens that the model is given."""
        rows = zip(self._inputs["input_ids"].tolist(), self._labels.tolist(), strict=True)
        return [Piece.of(ids, (LABELS[label],), self._policy) for ids, label in rows]

    def shared(self) -> list[int]:
        """Nothing is."""
        return [0] * len(self._inputs["input_ids"])

    def clear(self) -> None:
        self._model.zero_grad(set_to_none=True)

    def outcome(self) -> Gradients:
        """The gradients of all pairs of the policy; the first step's are what is timed."""
        self.clear()
        self.step()
        own = pairs_of(self._batch, self._policy)
        for first in range(self._rows, len(own), self._rows):
            self._take(own[first : first + self._rows])
            self.step()
        if len(own) > self._rows:
            self._take(own[: self._rows])
        gradients = {}
        for name, (_, (a, b)) in zip(self._adapter.tensors, layers(self._model, self._adapter), strict=True):
            if a.grad is not None and b.grad is not None:
                gradients[name] = (a.grad.clone(), b.grad.clone())
        self.clear()
        return gradients


class TrlTrainer(PeftTrainer):
    """TRL's ``SFTTrainer``, on the answer as the only labelled token. It patches its model, so give it its own."""

    def _take(self, chosen: Sequence[int]) -> None:
        (at,) = chosen
        pair = self._batch.pairs[at]
        prompt = self._batch.prefixes[pair.prefix] + pair.suffix_ids
        self._trainer = self._make_trainer((*prompt, LABELS[self._batch.labels[at]]))
        self._trainer.current_gradient_accumulation_steps = 1  # set by the training loop, which is not timed
        batch = next(iter(self._trainer.get_train_dataloader()))
        self._inputs = {name: value.to(self._model.device) for name, value in batch.items()}

    def _make_trainer(self, row: tuple[int, ...]) -> Any:
        trl = trl_package("the baseline 'trl' needs the package trl", ", or leave it out with bench.baselines=[peft]")
        options: dict[str, Any] = trainer_options(self._scratch, self._model.device) | {"remove_unused_columns": True}
        options |= {"max_length": None, "completion_only_loss": True, "gradient_checkpointing": False, "bf16": False}
        config = trl.SFTConfig(**options)
        vocab = self._model.config.vocab_size
        rows = Dataset.from_dict({"input_ids": [row], "completion_mask": [[0] * (len(row) - 1) + [1]]})
        words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {str(number): number for number in range(3, vocab)}
        tokenizer = PreTrainedTokenizerFast(  # the trainer insists on one; the rows hold token ids already
            tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
            pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        )  # fmt: skip
        return trl.SFTTrainer(model=self._model, args=config, train_dataset=rows, processing_class=tokenizer)

    def step(self) -> None:
        """The trainer's own step: prepare, forward, loss, backward."""
        items = torch.tensor(1, device=self._model.device)
        self._trainer.training_step(self._model, dict(self._inputs), num_items_in_batch=items)

    def pieces(self) -> list[Piece]:
        """The prompt is what stands before the labelled token."""
        ids, labels = self._inputs["input_ids"][0].tolist(), self._inputs["labels"][0].tolist()
        at = next((index for index, label in enumerate(labels) if label != IGNORED), len(labels))
        return [Piece.of(ids[:at], tuple(labels[at : at + 1]), self._policy)]


BATCH = 8  # conversations of a batch, ours and the baselines'
PEFT = {"peft": (True, 1), "peft_batch": (True, BATCH), "peft_lora": (False, 1), "peft_lora_batch": (False, BATCH)}
