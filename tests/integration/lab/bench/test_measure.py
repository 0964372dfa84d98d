"""FLOP counts against torch's own, memory against a system that must need more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from alora.adapter.folder import AdapterSpec
from alora.lab.bench.material import INVOCATION, LABELS, draw_batch, random_adapter
from alora.lab.bench.reference import peft_model
from alora.lab.bench.roofline import FlopCount
from alora.lab.bench.shapes import BaseShape, random_base
from alora.lab.bench.trainers import PASS_TOKENS, PackedTrainer, PeftTrainer

WIDE = BaseShape(vocab=97, hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, width=16)
TARGETS = tuple(sorted(WIDE.linears))
PREFIX, SUFFIX, RANK = 300, 6, 4
SPEC = AdapterSpec(RANK, 2.0 * RANK, TARGETS, INVOCATION)


def _attention(query, key, *args, causal=False, products=2, **kwargs):
    (batch, heads, rows, width), columns = query, key[2]
    seen = rows * (rows + 1) // 2 if causal else rows * columns
    return 2 * products * batch * heads * width * seen


def _counted(trainer) -> int:
    """Matrix products of one step as torch counts them, with CPU attention, which it does not know."""
    aten = torch.ops.aten

    def forward(query, key, value, dropout=0.0, causal=False, *rest, out_shape=None, **kwargs):
        return _attention(query, key, causal=causal)

    def backward(grad, query, key, value, out, lse, dropout=0.0, causal=False, *rest, out_shape=None, **kwargs):
        return _attention(query, key, causal=causal, products=5)

    known = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
    trainer.step()
    trainer.clear()
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        trainer.step()
    return counter.get_total_flops()


@pytest.fixture(scope="module")
def wide_base():
    return random_base(WIDE, torch.device("cpu"), torch.float32, seed=0)


def test_full_sequence_flops_are_what_torch_counts(wide_base, tmp_path):
    adapter, prompts = random_adapter(SPEC, wide_base, 0), draw_batch(WIDE.vocab, PREFIX, SUFFIX, 1, 0)
    trainer = PeftTrainer(peft_model(wide_base, SPEC), adapter, prompts, tmp_path)
    assert FlopCount(WIDE, RANK, TARGETS).full_sequence(PREFIX, SUFFIX) == pytest.approx(_counted(trainer), rel=0.01)


@pytest.mark.parametrize("policies", [1, 5])
def test_packed_flops_are_what_torch_counts(wide_base, policies, tmp_path):
    adapters = [random_adapter(SPEC, wide_base, policy) for policy in range(policies)]
    prompts = draw_batch(WIDE.vocab, PREFIX, SUFFIX, policies, 0)
    trainer = PackedTrainer(wide_base, adapters, prompts, tmp_path)
    paper = policies * FlopCount(WIDE, RANK, TARGETS).packed(PREFIX, SUFFIX, len(LABELS), policies)
    assert paper == pytest.approx(_counted(trainer), rel=0.02)
    trainer.close()


def test_the_split_needs_a_quarter_of_the_memory_and_no_more_with_more_policies(tmp_path):
    """Full-sequence training stores activations of the whole prompt; the split stores its keys and values, and one
    pass of suffixes. The control is a pass that takes all suffixes at once. In a process of its own: a step that fits
    into what a process has kept shows no need."""
    sizes = {"--prefix": 400, "--suffix": 8, "--policies": 32, "--rank": 4, "--out": tmp_path / "found.json"}
    command = [sys.executable, "scripts/step_memory.py", *(str(part) for pair in sizes.items() for part in pair)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[4])
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [(row["system"], row["policies"], row["pass_tokens"]) for row in rows] == [
        ("peft", 1, PASS_TOKENS), ("packed", 1, PASS_TOKENS), ("packed", 32, PASS_TOKENS), ("packed", 8, 64),
        ("packed", 32, 64),
    ]  # fmt: skip
    full, split, at_once, few, many = (row["extra_mib"] for row in rows)
    assert split <= 0.25 * full
    assert many <= 1.1 * few
    assert at_once > 1.5 * many > 0
