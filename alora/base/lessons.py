"""Pre-train on documents with summaries (:mod:`alora.base.summaries`) laid out as the prompts that adapters will see.

A lesson is one document in the renderer's own prefix, then its exchanges, each opened like a suffix. Lessons are rows
of their own, batched by length. The document's tokens weigh 1 in the loss and half of them are drawn each time (the
head is a third of a small model's cost), an answer's tokens weigh ``ANSWER_WEIGHT``, a question's nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from alora.base.pretrain import Architecture, fresh_model, make_optimizers, run_steps
from alora.base.summaries import SummarisedDocument
from alora.errors import BaseError
from alora.render import HEADING, SYSTEM_TEXT
from alora.tokens import TextEncoder

ANSWER_WEIGHT = 2
TEXT_SHARE = 0.5
SORTED_TOGETHER = 2048  # lessons sorted by length at a time: little padding, batches still random


@dataclass(frozen=True)
class Lesson:
    """Token ids, and the weight of predicting each (0, 1 or ANSWER_WEIGHT)."""

    token_ids: tuple[int, ...]
    weights: tuple[int, ...]


class LessonWriter:
    """Writes lessons for a ChatML tokenizer; a document keeps its first ``max_text_tokens`` tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, max_text_tokens: int) -> None:
        self.max_text_tokens = max_text_tokens
        self._tokenizer = tokenizer
        self._encode = TextEncoder(tokenizer).encode
        self._opening = self._markup(f"<|im_start|>system\n{SYSTEM_TEXT}<|im_end|>\n<|im_start|>user\n{HEADING}")
        self._asks, self._answers = self._markup("<|im_start|>user\n"), self._markup("<|im_start|>assistant\n")
        self._end, self._line = self._markup("<|im_end|>"), self._markup("\n")

    def write(self, document: SummarisedDocument) -> Lesson:
        """Document and exchanges as one row."""
        ids, weights = list(self._opening), [0] * len(self._opening)

        def add(piece: list[int], weight: int) -> None:
            ids.extend(piece)
            weights.extend([weight] * len(piece))

        add(self._encode(document.text)[: self.max_text_tokens] + self._end, 1)
        add(self._line, 0)
        for exchange in document.exchanges:
            add(self._asks + self._encode(exchange.question) + self._end + self._line + self._answers, 0)
            add(self._encode(exchange.answer) + self._end, ANSWER_WEIGHT)
            add(self._line, 0)
        return Lesson(tuple(ids), tuple(weights))

    def _markup(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def study(
    lessons: Sequence[Lesson],
    tokenizer: PreTrainedTokenizerFast,
    architecture: Architecture,
    *,
    steps: int,
    batch_tokens: int,
    learning_rate: float = 2e-3,
    seed: int = 0,
    threads: int | None = None,
    progress: bool = True,
    time_limit_s: float | None = None,
) -> Qwen3ForCausalLM:
    """Train a base from random weights on lessons: Muon for the matrices, AdamW for the rest, under bfloat16 autocast.

    Schedule, determinism and ``time_limit_s`` are those of :func:`alora.base.pretrain.pretrain`. ``batch_tokens``
    bounds rows times the longest row.

    Raises:
        BaseError: there is no lesson, or the loss is no longer finite.
    """
    if not lessons:
        raise BaseError("pre-training: the corpus holds no document; give a text file with at least one")
    model = fresh_model(architecture, tokenizer, seed, threads)
    optimizers = make_optimizers(model, learning_rate)
    batches = _batches(lessons, batch_tokens, torch.Generator().manual_seed(seed))

    def take_step(_: int) -> dict[str, float]:
        text, answers = _step(model, optimizers, next(batches))
        return {"text": text, "answers": answers}

    run_steps(take_step, optimizers, steps, time_limit_s, progress)
    return model.eval()


def _batches(
    lessons: Sequence[Lesson], batch_tokens: int, generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches ``(ids_BT, weights_BT)`` of like lengths for ever, padded on the right with weight 0."""
    while True:
        order = torch.randperm(len(lessons), generator=generator).tolist()
        groups: list[list[Lesson]] = []
        for start in range(0, len(order), SORTED_TOGETHER):
            chunk = sorted((lessons[i] for i in order[start : start + SORTED_TOGETHER]), key=lambda x: len(x.token_ids))
            group: list[Lesson] = []
            for lesson in chunk:
                if group and (len(group) + 1) * len(lesson.token_ids) > batch_tokens:
                    groups.append(group)
                    group = []
                group.append(lesson)
            groups.append(group)
        for which in torch.randperm(len(groups), generator=generator).tolist():
            yield _pad([x.token_ids for x in groups[which]]), _pad([x.weights for x in groups[which]])


def _pad(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def _step(
    model: Qwen3ForCausalLM, optimizers: Sequence[torch.optim.Optimizer], batch: tuple[torch.Tensor, torch.Tensor]
) -> tuple[float, float]:
    """One update; returns the mean loss over text and over answers, in nats. Rows are padded on the right, so
    causality masks the padding; logits exist only where something is predicted."""
    ids_BT, weights_BT = (tensor.to(model.device) for tensor in batch)
    weights_BT = weights_BT[:, 1:]
    drawn_BT = (weights_BT > 1) | (
        (weights_BT == 1) & (torch.rand(weights_BT.shape, device=ids_BT.device) < TEXT_SHARE)
    )
    targets_N, weights_N = ids_BT[:, 1:][drawn_BT], weights_BT[drawn_BT].float()
    with torch.autocast(ids_BT.device.type, torch.bfloat16):
        hidden_BTD = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, :-1]
        logits_NV = model.lm_head(hidden_BTD[drawn_BT])
    losses_N = functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")
    loss = (losses_N * weights_N).sum() / weights_N.sum()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    losses_N = losses_N.detach()
    return losses_N[weights_N == 1].mean().item(), losses_N[weights_N > 1].mean().item()
