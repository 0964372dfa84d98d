"""The method that trains no part of the model: logistic regression on the base's hidden state where it would answer.

The state is the last token's, after conversation and policy, after the final norm (what the head reads). If a
probe is as good as an adapter, the base knew already, and the adapter only reads it out.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm.auto import tqdm

from alora.adapter.bank import Bank
from alora.adapter.folder import silent_adapter
from alora.data.conversation import LabelledConversation
from alora.errors import DataError
from alora.evaluation.bag_of_words import log_probabilities
from alora.evaluation.predict import batched, held_out_predictions, labels_of
from alora.evaluation.resampling import Floats
from alora.lab.compare.scores import Scores, labelled_for, scores_of
from alora.lab.compare.task import MethodRun, Workbench
from alora.policy import Policy
from alora.prefix.packed import PackedModel
from alora.prefix.plan import Pair
from alora.prefix.scorer import PrefixCache
from alora.prompt.render import Question

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # inverse regularisation; the best on validation rows is taken


def fit_and_score(bench: Workbench, run: MethodRun, policy: Policy) -> Scores:
    """Fit a probe and score the policy's validation and test rows."""
    started = time.process_time()
    splits = bench.task.splits
    taught, asked = labelled_for(policy, splits.train), labelled_for(policy, splits.test)
    held = [] if policy.id in splits.folded else splits.calibration(policy.id)
    states_ND, labels_N = hidden_states(bench, policy, [*taught, *held]), labels_of(policy, [*taught, *held])
    # What each fit leaves out, and answers; a split is one of them.
    folds_N = np.array([row.folds.get(policy.id, -1) for row in taught] + [0] * len(held))
    known, probe, strength = _best_probe(policy, states_ND, labels_N, folds_N)
    logits_NL = log_probabilities(probe, hidden_states(bench, policy, asked), len(policy.labels))
    answered = [
        held_out_predictions(policy, splits.calibration(policy.id), known),
        held_out_predictions(policy, asked, logits_NL),
    ]
    facts = {"strength": strength, "training_rows": len(taught)}
    facts["cpu_seconds"] = round(time.process_time() - started, 1)
    return scores_of(run, answered, splits, facts)


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


def _best_probe(
    policy: Policy, states_ND: Floats, labels_N: NDArray[np.int64], folds_N: NDArray[np.int64]
) -> tuple[Floats, Pipeline, float]:
    """What the best strength's probes answer to the rows that each left out, its probe of all training rows, and it.

    Rows of fold -1 are learnt from alone; where there are any, the others are validation rows.
    """
    alone = bool((folds_N == -1).any())
    if len(np.unique(labels_N[folds_N == -1] if alone else labels_N)) < 2:
        raise DataError(f"policy {policy.id!r}: a probe needs training rows of two labels")
    asked_N = folds_N >= 0
    best: tuple[float, Floats, Pipeline, float] | None = None
    for strength in STRENGTHS:
        logits_NL = np.zeros((len(labels_N), len(policy.labels)))
        for fold in np.unique(folds_N[asked_N]):
            probe = _fit(strength, states_ND[folds_N != fold], labels_N[folds_N != fold])
            logits_NL[folds_N == fold] = log_probabilities(probe, states_ND[folds_N == fold], len(policy.labels))
        loss = -float(logits_NL[asked_N, labels_N[asked_N]].mean())
        if best is None or loss < best[0]:
            whole = probe if alone else _fit(strength, states_ND, labels_N)
            best = (loss, logits_NL[asked_N], whole, strength)
    assert best is not None
    return best[1:]


def _fit(strength: float, states_ND: Floats, labels_N: NDArray[np.int64]) -> Pipeline:
    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000)).fit(states_ND, labels_N)
