"""Pre-train a small base from text alone: where no model hub can be reached, the base is made here.

In the order things happen: :func:`train_tokenizer`, :func:`pretrain` (packs the documents, then next-token loss),
:func:`save_base`. The result is an ordinary Qwen3 folder that transformers, PEFT and vLLM load as they are.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from alora.errors import BaseError

END_OF_DOCUMENT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WARMUP_SHARE = 0.05

# A policy's answer must be one token, and role names are in every turn: the tokenizer is made to learn them whole.
LABEL_WORDS = ("Yes", "No", "yes", "no", " Yes", " No", " yes", " no", " violation", "violation", " ok", "ok")
ROLE_WORDS = ("system", "user", "assistant")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Architecture:
    """Size of a Qwen3-shaped base. ``head_dim`` and ``hidden`` are independent, as in Qwen3."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 512
    vocab: int = 2048
    max_positions: int = 8192

    def config(self, tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
        """The transformers configuration, with embeddings tied as in the small Qwen3 models.

        Raises:
            BaseError: the tokenizer holds more tokens than ``vocab``.
        """
        if len(tokenizer) > self.vocab:
            raise BaseError(f"the tokenizer holds {len(tokenizer)} tokens, the architecture {self.vocab}; raise vocab")
        return Qwen3Config(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.max_positions,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_DOCUMENT),
            eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
            bos_token_id=None,
        )


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with Qwen3's special tokens and a ChatML template; every byte string has an encoding.

    Raises:
        BaseError: ``vocab_size`` is too small to keep the label words as single tokens.
    """
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    specials = [AddedToken(text, special=True, normalized=False) for text in (END_OF_DOCUMENT, TURN_START, TURN_END)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_with_label_words(texts), trainer=trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=END_OF_DOCUMENT,
        eos_token=TURN_END,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    broken = [
        word for word in (*LABEL_WORDS, *ROLE_WORDS) if len(tokenizer.encode(word, add_special_tokens=False)) != 1
    ]
    if broken:
        raise BaseError(f"vocab_size={vocab_size} splits the words {broken}; raise it")
    return tokenizer


def _with_label_words(texts: Iterable[str]) -> Iterator[str]:
    """The texts without markup (special tokens are atoms already), then the label words often enough to be merged."""
    for text in texts:
        for special in (END_OF_DOCUMENT, TURN_START, TURN_END):
            text = text.replace(special, "\n")
        yield text
    for word in (*LABEL_WORDS, *ROLE_WORDS):
        yield from [f"{word}\n"] * 50_000 if word.startswith(" ") else [f"\n{word}\n"] * 50_000


def pretrain(
    documents: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    architecture: Architecture,
    *,
    steps: int,
    batch_size: int,
    sequence_length: int,
    learning_rate: float = 2e-3,
    answer_weight: float = 1.0,
    seed: int = 0,
    threads: int | None = None,
    progress: bool = True,
    time_limit_s: float | None = None,
    checkpoint: Callable[[int, Qwen3ForCausalLM], None] | None = None,
    checkpoint_every: int = 0,
) -> Qwen3ForCausalLM:
    """Train a base from random weights by next-token loss over packed documents.

    AdamW, linear warm-up, cosine decay to zero. Float32 on CPU; on CUDA float32 weights under bfloat16 autocast.
    The same arguments give the same weights on the same machine, unless ``time_limit_s`` is set: then the schedule
    follows whichever runs out first, steps or seconds. Special tokens written in a document count as such, so
    documents must be trusted text.

    Args:
        answer_weight: how much a token of an assistant turn counts against any other; answers are few, and are what
            teaches a small base to look back.
        checkpoint: called as ``checkpoint(step, model)`` every ``checkpoint_every`` steps.

    Raises:
        BaseError: no documents, or the loss is no longer finite.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows_NT = pack(documents, tokenizer, sequence_length)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(architecture.config(tokenizer)).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.05)
    header = tokenizer.convert_tokens_to_ids([TURN_START, "assistant", TURN_END])
    batches = _batches(rows_NT, batch_size, torch.Generator().manual_seed(seed))
    started = time.monotonic()
    with tqdm(total=steps, desc="pre-training", unit="step", disable=not progress) as bar:
        for step in range(steps):
            spent = 0.0 if time_limit_s is None else (time.monotonic() - started) / time_limit_s
            if spent >= 1.0:
                break
            _set_rate(optimizer, learning_rate * _schedule(max(step / steps, spent)))
            loss = _step(model, optimizer, next(batches).to(device), header, answer_weight)
            if not math.isfinite(loss):
                raise BaseError(f"pre-training: the loss is {loss} at step {step}; lower learning_rate={learning_rate}")
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()
            if checkpoint is not None and checkpoint_every and (step + 1) % checkpoint_every == 0:
                checkpoint(step + 1, model)
    return model.eval()


def pack(documents: Sequence[str], tokenizer: PreTrainedTokenizerFast, sequence_length: int) -> torch.Tensor:
    """Token ids as rows of ``sequence_length``, padded with -1: every row opens at the start of a document.

    A document that no longer fits opens the next row (cutting it would part a summary from what it sums up); one
    longer than a row is cut into pieces. Each ends with ``<|endoftext|>``. Returns int32 ``rows_NT``.

    Raises:
        BaseError: there is no document.
    """
    end = tokenizer.convert_tokens_to_ids(END_OF_DOCUMENT)
    rows: list[list[int]] = [[]]
    for ids in tokenizer(list(documents), add_special_tokens=False)["input_ids"] if documents else []:
        ids = [*ids, end]
        for start in range(0, len(ids), sequence_length):
            piece = ids[start : start + sequence_length]
            if len(rows[-1]) + len(piece) > sequence_length:
                rows.append([])
            rows[-1].extend(piece)
    if not rows[0]:
        raise BaseError("pre-training: the corpus holds no document; give a text file with at least one")
    rows_NT = torch.full((len(rows), sequence_length), -1, dtype=torch.int32)
    for row_T, ids in zip(rows_NT, rows, strict=True):
        row_T[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return rows_NT


def document_positions(ids_BT: torch.Tensor, end: int) -> torch.Tensor:
    """Position of each token within its document; a new one starts behind every ``end`` and every padding (-1)."""
    place_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    opens_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    opens_BT[:, 1:] = (ids_BT[:, :-1] == end) | (ids_BT[:, :-1] < 0)
    return place_T - torch.cummax(torch.where(opens_BT, place_T, 0), dim=1).values


def _batches(rows_NT: torch.Tensor, batch_size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Batches for ever, in a new order each epoch; the last batch of an epoch reaches into the next."""
    order: list[int] = []
    while True:
        while len(order) < batch_size:
            order.extend(torch.randperm(len(rows_NT), generator=generator).tolist())
        taken, order = order[:batch_size], order[batch_size:]
        yield rows_NT[taken].long()


def _schedule(progress: float) -> float:
    """Share of the peak learning rate at ``progress`` in [0, 1]: linear warm-up, then cosine to zero."""
    if progress < WARMUP_SHARE:
        return (progress + 1e-3) / (WARMUP_SHARE + 1e-3)
    return 0.5 * (1 + math.cos(math.pi * (progress - WARMUP_SHARE) / (1 - WARMUP_SHARE)))


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _step(
    model: Qwen3ForCausalLM,
    optimizer: torch.optim.Optimizer,
    ids_BT: torch.Tensor,
    header: list[int],
    answer_weight: float,
) -> float:
    """One update; returns the weighted mean next-token loss in nats.

    Positions start anew in each document; from that transformers (5.19, ``masking_utils``) makes the mask that keeps
    documents of a row from seeing each other.
    """
    end: int = model.config.pad_token_id
    with torch.autocast(ids_BT.device.type, torch.bfloat16, enabled=ids_BT.device.type == "cuda"):
        logits_BTV = model(
            input_ids=ids_BT.clamp(min=0), position_ids=document_positions(ids_BT, end), use_cache=False
        ).logits[:, :-1]
    targets_BT = ids_BT[:, 1:]
    weights_BT = torch.where(in_answer(ids_BT, *header), answer_weight, 1.0)[:, 1:] * (targets_BT >= 0)
    losses = functional.cross_entropy(
        logits_BTV.float().flatten(0, 1), targets_BT.clamp(min=0).flatten(), reduction="none"
    )
    loss = (losses * weights_BT.flatten()).sum() / weights_BT.sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def in_answer(ids_BT: torch.Tensor, turn_start: int, assistant: int, turn_end: int) -> torch.Tensor:
    """Which tokens an assistant turn is made of: behind its role and line break, up to and with its end mark."""
    place_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    opens_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    opens_BT[:, 3:] = (ids_BT[:, :-3] == turn_start) & (ids_BT[:, 1:-2] == assistant)
    closes_BT = torch.zeros_like(opens_BT)
    closes_BT[:, 1:] = ids_BT[:, :-1] == turn_end
    opened_BT = torch.cummax(torch.where(opens_BT, place_T, -1), dim=1).values
    closed_BT = torch.cummax(torch.where(closes_BT, place_T, -1), dim=1).values
    return opened_BT > closed_BT


def save_base(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """Write model (safetensors) and tokenizer to a new ``folder``: beside it first, then renamed.

    Raises:
        BaseError: ``folder`` exists already, or cannot be written.
    """
    folder = Path(folder)
    if folder.exists():
        raise BaseError(f"{folder} exists already; choose another folder or remove it")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            model.save_pretrained(beside)
            tokenizer.save_pretrained(beside)
            beside.chmod(0o755)
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise BaseError(f"the base cannot be written to {folder}: {error}") from error
    return folder
