"""The objective: cross-entropy over the label tokens' logits at the label position, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Answers:
    """Label logits of some pairs, and their labels; labels that a policy does not have hold ``-inf``."""

    logits_nL: torch.Tensor
    labels_n: torch.Tensor


def label_losses(answers: Answers) -> torch.Tensor:
    """``-log softmax(logits_n)[label_n]`` of each pair, ``[n]``."""
    return torch.nn.functional.cross_entropy(answers.logits_nL, answers.labels_n, reduction="none")


def pair_weights(policies: Sequence[int]) -> list[float]:
    """Weight of each pair of a batch: the loss is the mean over each policy's pairs, summed over policies.

    A policy's gradient is then what it would be if the policy were trained alone on its rows of the batch.
    """
    counts = Counter(policies)
    return [1.0 / counts[policy] for policy in policies]
