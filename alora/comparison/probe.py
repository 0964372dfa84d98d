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
from alora.comparison.scores import Scores, labelled_for, scores_of
from alora.comparison.task import MethodRun, Workbench
from alora.data.conversation import LabelledConversation
from alora.errors import DataError
from alora.evaluation.bag_of_words import log_probabilities
from alora.evaluation.predict import Predictions, batched, labels_of
from alora.evaluation.resampling import Floats
from alora.policy import Policy
from alora.prefix.packed import PackedModel
from alora.prefix.plan import Pair
from alora.prefix.scorer import PrefixCache
from alora.prompt.render import Question

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # inverse regularisation; the best on validation rows is taken


def fit_and_score(bench: Workbench, run: MethodRun, policy: Policy) -> Scores:
    """Fit a probe and score the policy's validation and test rows.

    Raises:
        DataError: its training rows hold one label only.
    """
    started = time.process_time()
    splits = bench.task.splits
    rows = {name: labelled_for(policy, getattr(splits, name)) for name in ("train", "validation", "test")}
    states = {name: hidden_states(bench, policy, part) for name, part in rows.items()}
    labels = {name: labels_of(policy, part) for name, part in rows.items()}
    probe, strength = _best_probe(policy, states, labels)
    answered = [
        Predictions(policy, log_probabilities(probe, states[name], len(policy.labels)), labels[name])
        for name in ("validation", "test")
    ]
    facts = {"strength": strength, "training_rows": len(rows["train"])}
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
            for questions in batched(Question(bench.renderer.prefix(row.conversation), [suffix], [0]) for row in rows):
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
    policy: Policy, states: dict[str, Floats], labels: dict[str, NDArray[np.int64]]
) -> tuple[Pipeline, float]:
    if len(np.unique(labels["train"])) < 2:
        raise DataError(f"policy {policy.id!r}: a probe needs training rows of two labels")
    probes = {}
    for strength in STRENGTHS:
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))
        probe.fit(states["train"], labels["train"])
        known = log_probabilities(probe, states["validation"], len(policy.labels))
        probes[strength] = (-float(known[np.arange(len(known)), labels["validation"]].mean()), probe)
    best = min(probes, key=lambda strength: probes[strength][0])
    return probes[best][1], best
