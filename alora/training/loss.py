"""The objective: cross-entropy over the label tokens' logits at the label position, and nothing else."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

TEMPERATURES = tuple(2 ** (step / 4) for step in range(-8, 21))  # 1/4 to 32


@dataclass(frozen=True)
class LabelledLogits:
    """Label logits of some pairs, and their labels; labels that a policy does not have hold ``-inf``."""

    logits_nL: torch.Tensor
    labels_n: torch.Tensor
    weights_nL: torch.Tensor | None = None  # of each pair's labels; None: all the same


def label_losses(answers: LabelledLogits) -> torch.Tensor:
    """``-log softmax(logits_n)[label_n]`` of each pair, ``[n]``.

    With weights w it is ``-w[label_n] log softmax(logits_n + log w)[label_n]``. Weights alone would fit the
    logits to other label frequencies, which no temperature corrects. With ``log w`` added in training only, the loss is
    lowest where ``softmax(logits_n)`` is the label probability at the rows' own frequencies.
    """
    if answers.weights_nL is None:
        return torch.nn.functional.cross_entropy(answers.logits_nL, answers.labels_n, reduction="none")
    shifted_nL = answers.logits_nL + answers.weights_nL.log()
    losses_n = torch.nn.functional.cross_entropy(shifted_nL, answers.labels_n, reduction="none")
    return losses_n * answers.weights_nL.gather(1, answers.labels_n[:, None])[:, 0]


def tempered_losses(answers: LabelledLogits) -> torch.Tensor:
    """The losses at every one of :data:`TEMPERATURES`, ``[n, K]``.

    A verdict's temperature is fitted on the same validation rows after training, so a checkpoint is judged at its best
    temperature. At temperature 1 an adapter that grows surer than it is right looks worse than it serves.
    """
    temperatures_K = torch.tensor(TEMPERATURES, device=answers.logits_nL.device, dtype=torch.float64)
    logits_KnL = answers.logits_nL.double() / temperatures_K[:, None, None]
    labels_Kn = answers.labels_n.expand(len(TEMPERATURES), -1)
    losses = torch.nn.functional.cross_entropy(logits_KnL.flatten(0, 1), labels_Kn.flatten(), reduction="none")
    return losses.view(len(TEMPERATURES), -1).T


def pair_weights(policies: Sequence[int]) -> list[float]:
    """Weight of each pair of a batch: the loss is the mean over each policy's pairs, summed over policies.

    A policy's gradient is then what it would be if the policy were trained alone on its rows of the batch.
    """
    counts = Counter(policies)
    return [1.0 / counts[policy] for policy in policies]
