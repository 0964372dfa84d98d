"""Scores and the merge are float32 for half-precision inputs."""

import pytest
import torch

from alora.prefix import own_suffix
from alora.prefix.attention import Shape, shared_prefix_attention


@pytest.mark.parametrize("window", [None, 12])
def test_half_precision_inputs_are_rounded_once_more_and_no_further(window):
    generator = torch.Generator().manual_seed(0)
    q, k, v, prefix_k, prefix_v = (
        torch.randn(heads, rows, 16, generator=generator).bfloat16()
        for heads, rows in ((4, 14), (2, 14), (2, 14), (2, 40), (2, 40))
    )
    shape = Shape((6, 8), 2.0, window)
    found = shared_prefix_attention(q, k, v, prefix_k, prefix_v, shape)
    wanted = shared_prefix_attention(q.float(), k.float(), v.float(), prefix_k.float(), prefix_v.float(), shape)
    assert found.dtype == torch.bfloat16
    assert ((found.float() - wanted).abs() <= 0.01 * wanted.abs() + 0.01).all()


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("last_only", [False, True])
def test_long_texts_are_scored_in_blocks_of_rows(window, last_only, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, 2 if last_only else 90), (2, 90), (2, 90), (2, 60), (2, 60))
    inputs = [torch.randn(heads, rows, 8, generator=generator, dtype=torch.float64) for heads, rows in sizes]
    shape, scored, score = Shape((40, 50), 2.0, window, last_only), [], own_suffix.scores_of
    whole = shared_prefix_attention(*inputs, shape)
    monkeypatch.setattr(own_suffix, "_FORWARD_BYTES", 2**13)
    monkeypatch.setattr(own_suffix, "scores_of", lambda *given: scored.append(score(*given)) or scored[-1])
    assert torch.allclose(shared_prefix_attention(*inputs, shape), whole, rtol=1e-12, atol=1e-12)
    assert last_only or window is None or len(scored) >= 10  # without a window the kernel scores
    assert max((scores.numel() for scores in scored), default=0) <= 2**13 // 4
