"""The objective, and the loss that a checkpoint is judged by."""

import math

import pytest
import torch

from alora.training.loss import TEMPERATURES, LabelledLogits, label_losses, tempered_losses
from alora.training.standings import Tally


def test_the_tempered_losses_are_the_losses_of_cooler_logits():
    logits_nL = torch.tensor([[4.0, -1.0, -math.inf], [0.5, 2.0, 1.0]])
    labels_n = torch.tensor([1, 2])
    found_nK = tempered_losses(LabelledLogits(logits_nL, labels_n))
    assert found_nK.shape == (2, len(TEMPERATURES))
    for column, temperature in enumerate(TEMPERATURES):
        wanted_n = label_losses(LabelledLogits(logits_nL.double() / temperature, labels_n))
        torch.testing.assert_close(found_nK[:, column], wanted_n)
    assert 1.0 in TEMPERATURES


def test_a_checkpoint_that_is_too_sure_is_judged_by_what_it_ranks():
    """Two checkpoints of one ranking, the second eight times as sure, are judged alike; its plain loss is worse."""
    margins = torch.tensor([1.0, 2.0, -0.5, -1.5, 0.4, -2.0])
    labels_n = torch.tensor([0, 0, 1, 1, 1, 0])
    judged, plain = [], []
    for sureness in (1.0, 8.0):
        answers = LabelledLogits(torch.stack((sureness * margins, torch.zeros(6)), dim=1), labels_n)
        tally = Tally([0], columns=len(TEMPERATURES))
        tally.add([0] * 6, tempered_losses(answers).tolist())
        judged.append(tally.means()[0])
        plain.append(label_losses(answers).mean().item())
    assert judged[1] == pytest.approx(judged[0], rel=1e-6)
    assert plain[1] > 2 * plain[0]


def test_balanced_labels_leave_the_probability_among_the_rows_as_it_is():
    """One positive among ten rows: both labels pull equally, and the loss is least where P(positive) is 0.1."""
    labels_n = torch.tensor([0] + [1] * 9)
    weights_nL = torch.tensor([5.0, 10 / 18], dtype=torch.float64).expand(10, 2)
    margin = torch.tensor(math.log(1 / 9), dtype=torch.float64, requires_grad=True)
    logits_nL = torch.stack((margin, torch.zeros_like(margin))).expand(10, 2)
    losses_n = label_losses(LabelledLogits(logits_nL, labels_n, weights_nL))
    (gradient,) = torch.autograd.grad(losses_n.mean(), margin, retain_graph=True)
    assert gradient.item() == pytest.approx(0, abs=1e-12)
    (pull,) = torch.autograd.grad(losses_n[0], margin)
    assert abs(pull.item()) == pytest.approx(2.5)  # of nine negatives together; without weights 0.9 of 10 rows
    equal = label_losses(LabelledLogits(logits_nL, labels_n, torch.ones(10, 2, dtype=torch.float64)))
    torch.testing.assert_close(equal, label_losses(LabelledLogits(logits_nL, labels_n)))
