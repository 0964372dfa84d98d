"""The arm that trains nothing: the base reads conversation, title and rule, and its label words' logits answer."""

from __future__ import annotations

import time

from alora.adapter.folder import silent_adapter
from alora.comparison.scores import Scores, row_scores
from alora.comparison.task import Unit, Workbench
from alora.evaluation.predict import predict
from alora.prefix.scorer import Scorer


def score_prompted(bench: Workbench, unit: Unit) -> dict[str, Scores]:
    """Scores of every policy, with the whole rule in the suffix whatever ``prompt.instruction`` says.

    Temperature and threshold are fitted on validation rows afterwards, as for every arm; a preference that points the
    wrong way stays wrong.
    """
    task, base = bench.task, bench.base
    renderer = bench.renderer.telling_the_rule()
    suffixes = [renderer.suffix(policy) for policy in task.policies]
    silent = [silent_adapter(base.model, task.recipe.adapter.targets, suffix.invocation_ids) for suffix in suffixes]
    started = time.process_time()
    with Scorer(base, silent, store=bench.store) as scorer:
        known, asked = (
            predict(scorer, renderer, task.policies, suffixes, rows, f"rule in the prompt on {name}")
            for name, rows in (("validation", task.splits.validation), ("test", task.splits.test))
        )
    facts = {"cpu_seconds_scoring_all_policies": round(time.process_time() - started, 1)}
    return {
        policy.id: Scores(
            arm=unit.arm,
            policy=policy.id,
            seed=None,
            rank=None,
            validation=row_scores(known[place], task.splits.validation),
            test=row_scores(asked[place], task.splits.test),
            facts=facts | {"suffix_tokens": len(suffixes[place].token_ids)},
        )
        for place, policy in enumerate(task.policies)
    }
