"""The objective: cross-entropy over the label tokens' logits at the label position, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Answers:
    """Label logits of some pairs, their labels, and the weight of each in the loss."""

    logits_nL: torch.Tensor
    labels_n: torch.Tensor
    weights_n: torch.Tensor


def pair_weights(policies: Sequence[int]) -> list[float]:
    """Weight of each pair of a batch: the loss is the mean over each policy's pairs, summed over policies.

    A policy's gradient is then what it would be if the policy were trained alone on its rows of the batch.
    """
    counts = Counter(policies)
    return [1.0 / counts[policy] for policy in policies]


def label_loss(answers: Answers) -> torch.Tensor:
    """``sum_n w_n * -log softmax(logits_n)[label_n]``; labels that a policy does not have hold ``-inf``."""
    losses_n = torch.nn.functional.cross_entropy(answers.logits_nL, answers.labels_n, reduction="none")
    return (answers.weights_n.to(losses_n.dtype) * losses_n).sum()
