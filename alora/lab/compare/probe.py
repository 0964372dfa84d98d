"""The methods that train no part of a model: logistic regression on the base's hidden state where it would answer, or
on an encoder's embeddings.

The base's state is the last token's, after conversation and policy, after the final norm (what the head reads). If a
probe is as good as an adapter, the base knew already, and the adapter only reads it out.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm.auto import tqdm

from alora.adapter.bank import Bank
from alora.adapter.folder import silent_adapter
from alora.data.conversation import LabelledConversation
from alora.evaluation.bag_of_words import log_probabilities
from alora.evaluation.predict import Predictions, batched, labels_of
from alora.evaluation.resampling import Floats
from alora.lab.compare.encoder import embeddings
from alora.lab.compare.scores import Rows, Scores, held_out_answers, labelled_for, scores_of
from alora.lab.compare.task import MethodRun, Workbench
from alora.policy import Policy
from alora.prefix.packed import PackedModel
from alora.prefix.plan import Pair
from alora.prefix.scorer import PrefixCache
from alora.prompt.render import Question

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # inverse regularisation; the best on validation rows is taken


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
