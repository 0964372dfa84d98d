"""Which policies a step moves."""

import pytest
import torch
from torch import nn

from alora.training.optimiser import PolicyAdamW


def test_a_gradient_in_any_parameter_moves_the_policy():
    """Policies may adapt other modules: one has no gradient in the first, one none in the last, one none at all."""
    first, last = (nn.Parameter(torch.ones(3, 1)) for _ in range(2))
    first.grad, last.grad = torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([[0.0], [1.0], [0.0]])
    PolicyAdamW([first, last], lr=0.5, weight_decay=0.1).step()
    assert first.flatten().tolist() == pytest.approx([0.45, 0.95, 1.0])
    assert last.flatten().tolist() == pytest.approx([0.95, 0.45, 1.0])


def test_a_policy_that_is_taken_back_starts_without_momentum():
    stacked = nn.Parameter(torch.ones(2, 1))
    optimiser = PolicyAdamW([stacked], lr=0.5)
    stacked.grad = torch.ones(2, 1)
    optimiser.step()
    optimiser.forget([0])
    assert [[bool(held[policy].any()) for held in optimiser.state[stacked].values()] for policy in (0, 1)] == [
        [False] * 3, [True] * 3
    ]  # fmt: skip
