"""Pre-train a small base from text alone: where no model hub can be reached, the base is made here.

In the order things happen: :func:`train_tokenizer`, :func:`pretrain` (packs the documents, then next-token loss),
:func:`save_base`. The result is an ordinary Qwen3 folder that transformers, PEFT and vLLM load as they are.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from alora.base.packing import document_positions, in_answer, pack
from alora.errors import BaseError

END_OF_DOCUMENT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WARMUP_SHARE = 0.05
MUON_RATE_FACTOR = 10  # Muon's steps are orthogonal matrices; its rate is this many times AdamW's

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
            pad_token_id=tokenizer.get_vocab()[END_OF_DOCUMENT],
            eos_token_id=tokenizer.get_vocab()[TURN_END],
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
        yield from [f"{word}\n"] * 5_000 if word.startswith(" ") else [f"\n{word}\n"] * 5_000


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
    text_share: float = 1.0,
    seed: int = 0,
    threads: int | None = None,
    progress: bool = True,
    time_limit_s: float | None = None,
    checkpoint: Callable[[int, Qwen3ForCausalLM], None] | None = None,
    checkpoint_every: int = 0,
) -> Qwen3ForCausalLM:
    """Train a base from random weights by next-token loss over packed documents.

    Muon and AdamW, linear warm-up, cosine decay to zero. Float32 on CPU; on CUDA under bfloat16 autocast.
    The same arguments give the same weights on the same machine, unless ``time_limit_s`` is set: then the schedule
    follows whichever runs out first, steps or seconds. Special tokens written in a document count as such, so
    documents must be trusted text.

    Args:
        answer_weight: how much a token of an assistant turn counts against any other; answers are few, and are what
            teaches a small base to look back.
        text_share: share of the other tokens, drawn anew each step, that are predicted at all; the head is a third of
            a small model's cost.
        checkpoint: called as ``checkpoint(step, model)`` every ``checkpoint_every`` steps.

    Raises:
        BaseError: no documents, or the loss is no longer finite.
    """
    rows_NT = pack(documents, tokenizer, sequence_length)
    model = fresh_model(architecture, tokenizer, seed, threads)
    optimizers = make_optimizers(model, learning_rate)
    answer_marks = [tokenizer.get_vocab()[text] for text in (TURN_START, "assistant", TURN_END)]
    batches = _batches(rows_NT, batch_size, torch.Generator().manual_seed(seed))

    def take_step(step: int) -> dict[str, float]:
        loss = _step(model, optimizers, next(batches).to(model.device), answer_marks, answer_weight, text_share)
        if checkpoint is not None and checkpoint_every and (step + 1) % checkpoint_every == 0 and math.isfinite(loss):
            checkpoint(step + 1, model)
        return {"loss": loss}

    run_steps(take_step, optimizers, steps, time_limit_s, progress)
    return model.eval()


def fresh_model(
    architecture: Architecture, tokenizer: PreTrainedTokenizerFast, seed: int, threads: int | None
) -> Qwen3ForCausalLM:
    """A model of random weights in train mode, on the GPU where there is one; seeds what is drawn from then on."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(architecture.config(tokenizer)).train()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return model.to(device)  # pyright: ignore[reportArgumentType] a decorator of transformers hides the method from it


def run_steps(
    take_step: Callable[[int], Mapping[str, float]],
    optimizers: Sequence[torch.optim.Optimizer],
    steps: int,
    time_limit_s: float | None,
    progress: bool,
) -> None:
    """Call ``take_step(step)``, which updates the weights and returns losses by name, until steps or seconds run out.

    Raises:
        BaseError: a loss is not finite.
    """
    started = time.monotonic()
    with tqdm(total=steps, desc="pre-training", unit="step", disable=not progress) as bar:
        for step in range(steps):
            spent = 0.0 if time_limit_s is None else (time.monotonic() - started) / time_limit_s
            if spent >= 1.0:
                break
            set_rates(optimizers, max(step / steps, spent))
            losses = take_step(step)
            if not all(map(math.isfinite, losses.values())):
                raise BaseError(f"pre-training: the loss is not finite at step {step}; lower learning_rate")
            bar.set_postfix({name: f"{loss:.3f}" for name, loss in losses.items()}, refresh=False)
            bar.update()


def _batches(rows_NT: torch.Tensor, batch_size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Batches for ever, in a new order each epoch; the last batch of an epoch reaches into the next."""
    order: list[int] = []
    while True:
        while len(order) < batch_size:
            order.extend(torch.randperm(len(rows_NT), generator=generator).tolist())
        taken, order = order[:batch_size], order[batch_size:]
        yield rows_NT[taken].long()


def make_optimizers(model: Qwen3ForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024, ``torch.optim.Muon``) for hidden matrices, which it is made for; AdamW for the rest.

    At these sizes AdamW alone needs several times the steps before answers leave chance.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon_rate = MUON_RATE_FACTOR * learning_rate
    return [
        torch.optim.Muon([{"params": matrices, "peak": muon_rate}], lr=muon_rate, weight_decay=0.0),
        torch.optim.AdamW([{"params": others, "peak": learning_rate}], betas=(0.9, 0.95), weight_decay=0.0),
    ]


def set_rates(optimizers: Sequence[torch.optim.Optimizer], progress: float) -> None:
    """Learning rates at ``progress`` in [0, 1]: linear warm-up to each group's peak, then cosine to zero."""
    if progress < WARMUP_SHARE:
        share = (progress + 1e-3) / (WARMUP_SHARE + 1e-3)
    else:
        share = 0.5 * (1 + math.cos(math.pi * (progress - WARMUP_SHARE) / (1 - WARMUP_SHARE)))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = share * group["peak"]


def _step(
    model: Qwen3ForCausalLM,
    optimizers: Sequence[torch.optim.Optimizer],
    ids_BT: torch.Tensor,
    answer_marks: list[int],
    answer_weight: float,
    text_share: float,
) -> float:
    """One update; returns the weighted mean next-token loss in nats.

    Positions start anew in each document; from that transformers (5.19, ``masking_utils``) makes the mask that keeps
    documents of a row from seeing each other.
    """
    positions_BT = document_positions(ids_BT, model.config.pad_token_id or 0)
    targets_BT, answers_BT = ids_BT[:, 1:], in_answer(ids_BT, *answer_marks)[:, 1:]
    # Drawn on the CPU, so that the same seed draws the same tokens on any device.
    drawn_BT = answers_BT | (torch.rand(targets_BT.shape) < text_share).to(ids_BT.device)
    drawn_BT &= targets_BT >= 0
    with torch.autocast(ids_BT.device.type, torch.bfloat16, enabled=ids_BT.device.type == "cuda"):
        hidden_BTD = model.model(
            input_ids=ids_BT.clamp(min=0), position_ids=positions_BT, use_cache=False
        ).last_hidden_state[:, :-1]
        logits_NV = model.lm_head(hidden_BTD[drawn_BT])
    losses_N = functional.cross_entropy(logits_NV.float(), targets_BT[drawn_BT], reduction="none")
    weights_N = torch.where(answers_BT[drawn_BT], answer_weight, 1.0)
    loss = (losses_N * weights_N).sum() / weights_N.sum()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


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
