"""A policy in a battery moves as it would alone, also when most steps hold no row of it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from alora.config.schema import TrainingSettings
from alora.training.examples import Example, Target
from alora.training.loop import fit
from alora.training.model import PolicyAdamW
from alora.training.schedule import Schedule, make_schedule
from tests.integration.training.last_weights import LastWeights
from tests.peft_reference import adapter_distance, random_adapter, relative_error
from tests.toy_models import as_base, toy_model, toy_tokens

INVOCATION, LABELS = (5, 6, 7), (11, 12)
SEEN = ((0, 1, 2), (1,), (0, 2), (), (2,), (1, 2), (0,), (0, 1, 2))  # policies with a row, step by step
DECAY = {"lr": 0.05, "weight_decay": 0.1}


def _gradient(step: int) -> torch.Tensor:
    """``[3, 4, 5]`` with zeros for the policies that have no row."""
    gradient = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    gradient[[policy for policy in range(3) if policy not in SEEN[step]]] = 0.0
    return gradient


def _moved(make) -> torch.Tensor:
    stacked = nn.Parameter(torch.ones(3, 4, 5, dtype=torch.float64))
    optimiser = make([stacked])
    for step in range(len(SEEN)):
        optimiser.param_groups[0]["lr"] = 0.05 / (1 + step)
        stacked.grad = _gradient(step) if SEEN[step] else None
        optimiser.step()
    return stacked.detach()


def _alone(policy: int, share: float = 1.0) -> torch.Tensor:
    """torch's AdamW on one slice, called at the steps that hold a row of the policy, at a share of the rate."""
    own = nn.Parameter(torch.ones(4, 5, dtype=torch.float64))
    optimiser = torch.optim.AdamW([own], **DECAY)
    for step, seen in enumerate(SEEN):
        if policy in seen:
            optimiser.param_groups[0]["lr"] = share * 0.05 / (1 + step)
            own.grad = _gradient(step)[policy]
            optimiser.step()
    return own.detach()


@pytest.mark.parametrize("policy", range(3))
def test_each_slice_is_torch_adamw_at_its_own_steps(policy):
    ours = _moved(lambda parameters: PolicyAdamW(parameters, **DECAY))
    assert relative_error(ours[policy], _alone(policy)) <= 1e-14


def test_one_adamw_over_the_stack_is_not():
    """Negative control: momentum and decay move policies that have no row."""
    stacked = _moved(lambda parameters: torch.optim.AdamW(parameters, **DECAY))
    assert min(relative_error(stacked[policy], _alone(policy)) for policy in range(3)) > 1e-3


def _rows(count: int, policies: tuple[int, ...], first: int = 0) -> list[Example]:
    """Conversation ``n`` is labelled for policy 0, 1 or 2 alone; those of other policies keep their place, empty."""
    rows = []
    for number in range(first, first + count):
        own = (0, 1, 1, 2, 1, 1, 1)[number % 7]
        targets = [
            Target(place, (*INVOCATION, *range(30 + own, 33 + 2 * own)), LABELS, number // 7 % 2)
            for place, policy in enumerate(policies)
            if policy == own
        ]
        rows.append(Example(toy_tokens(5 + number % 7, number), tuple(targets)))
    return rows


def _fit(folder, policies, **kwargs):
    base = as_base(toy_model("qwen3", torch.float64))
    settings = TrainingSettings(
        max_steps=50, batch_size=2, learning_rate=3e-3, weight_decay=0.1, early_stopping_patience=0, **kwargs
    )
    adapters = [random_adapter(base.model, rank=2 + 2 * policy, seed=policy) for policy in policies]
    train, validation = _rows(42, policies), _rows(14, policies, 70)
    last = LastWeights()
    with pytest.MonkeyPatch.context() as patch:  # a step would hold more rows of other policies, and so more in all
        patch.setattr("alora.training.loop.make_schedule", _two_rows_a_step)
        fit(base, adapters, train, validation, settings, folder, progress=False, callbacks=[last])
    return last.adapters


def _two_rows_a_step(*arguments) -> Schedule:
    return replace(make_schedule(*arguments), conversations=2)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    return _fit(tmp_path_factory.mktemp("together"), (0, 1, 2))


@pytest.mark.parametrize("policy", range(3))
def test_a_policy_with_rows_of_its_own_equals_itself_trained_alone(together, tmp_path, policy):
    (alone,) = _fit(tmp_path, (policy,))
    assert adapter_distance(together[policy], alone) <= 1e-6


def test_a_policy_at_half_the_rate_moves_as_if_alone_at_half_the_rate():
    halved = _moved(lambda parameters: PolicyAdamW(parameters, **DECAY, rates=lambda: [1.0, 0.5, 1.0]))
    whole = _moved(lambda parameters: PolicyAdamW(parameters, **DECAY))
    assert torch.equal(halved[[0, 2]], whole[[0, 2]])
    assert relative_error(halved[1], _alone(1, share=0.5)) <= 1e-14
