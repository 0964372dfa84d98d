"""Each of vLLM's CPU kernels leaves rows without an adapter as they are."""

import pytest
import torch

from alora.vllm_plugin import compat


@pytest.mark.parametrize(
    ("symbol", "more"),
    [(compat.BGMV_SHRINK, (1.0,)), (compat.BGMV_EXPAND, (True,)), (compat.BGMV_EXPAND_SLICE, (0, 8, True))],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("indices", [[-1, 0, -1, 1], [-1] * 4, [0, 1, 1, 0]], ids=str)
def test_rows_without_an_adapter_keep_their_bytes(symbol, more, indices):
    weights = torch.stack((torch.ones(8, 4), 2 * torch.ones(8, 4)))
    output = torch.zeros(4, 8)
    compat.current(symbol)(torch.ones(4, 4), weights, output, torch.tensor(indices), *more)
    assert output.tolist() == [[0.0 if index < 0 else 4.0 * (index + 1)] * 8 for index in indices]
