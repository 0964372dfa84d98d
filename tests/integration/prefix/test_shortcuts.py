"""What the packed forward saves itself leaves every value and gradient as it was; each with a planted fault."""

from types import SimpleNamespace

import pytest
import torch

from alora.adapter.bank import Bank, Route
from alora.prefix import flash
from alora.prefix.attention import Shape, shared_prefix_attention
from alora.prefix.packed import PackedModel
from alora.prefix.passes import rows_of
from tests.integration.prefix.test_equals_peft import _battery, _ours, _worst
from tests.peft_reference import random_adapter
from tests.toy_models import FAMILIES, toy_model

CPU = torch.device("cpu")


def _qkv(dtype, lengths=(3, 5, 2), heads=4, groups=2, prefix=17, width=8):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    rows = sum(lengths)
    own = [draw(heads, rows, width), draw(groups, rows, width), draw(groups, rows, width)]
    return own, [draw(groups, prefix, width), draw(groups, prefix, width)], lengths


def _dense(own, prefix, lengths, scaling, window=10**6):
    """One softmax per suffix over prefix and own keys, in the plainest way."""
    (q, k, v), repeat, outputs, start = own, own[0].shape[0] // own[1].shape[0], [], 0
    for length in lengths:
        part = slice(start, start + length)
        keys = torch.cat([prefix[0], k[:, part]], 1).repeat_interleave(repeat, 0)
        values = torch.cat([prefix[1], v[:, part]], 1).repeat_interleave(repeat, 0)
        scores = q[:, part] @ keys.transpose(1, 2) * scaling
        key_T = torch.arange(keys.shape[1])
        distance = key_T[-length:, None] - key_T
        scores = scores.masked_fill((distance < 0) | (distance >= window), float("-inf"))
        outputs.append(scores.softmax(-1) @ values)
        start += length
    return torch.cat(outputs, 1)


def _gradients(function, own):
    leaves = [x.clone().requires_grad_() for x in own]
    out = function(leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out.cpu()).to(out)
    (out * weights).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def _packed(prefix, shape):
    return lambda own: shared_prefix_attention(*own, *prefix, shape)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("kernel", ["blocks", "fused"])
def test_both_backwards_are_the_softmax_over_all(dtype, bound, kernel, monkeypatch):
    """The fused backward is what a GPU takes; the CPU's kernel has the same contract."""
    monkeypatch.setattr(flash, "BACKWARD_ON", {"cpu"} if kernel == "fused" else set())
    own, prefix, lengths = _qkv(dtype)
    found = _gradients(_packed(prefix, Shape(lengths, 0.3, None)), own)
    wanted = _gradients(lambda leaves: _dense(leaves, prefix, lengths, 0.3), own)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).norm() <= bound * theirs.norm()


@pytest.mark.parametrize("window", [1, 3, 4, 5, 17, 18, 20, 21, 22, None])
@pytest.mark.parametrize("block_bytes", [1, 1024**2], ids=["many blocks", "one block"])
def test_every_window_is_the_softmax_over_what_it_shows(window, block_bytes, monkeypatch):
    """With 17 prefix tokens and suffixes of 3, 5 and 2: windows that hide all of the prefix, some, and next to none."""
    monkeypatch.setattr("alora.prefix.attention._BLOCK_BYTES", {"cpu": block_bytes})
    own, prefix, lengths = _qkv(torch.float64)
    found = _gradients(_packed(prefix, Shape(lengths, 0.3, window)), own)
    wanted = _gradients(lambda leaves: _dense(leaves, prefix, lengths, 0.3, window or 10**6), own)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_the_prefix_own_log_sum_exp_is_not_enough():
    """Negative control: without the merge, the kernel's gradient is another one."""
    own, prefix, lengths = _qkv(torch.float64)
    folded = own[0].reshape(2, -1, 8)
    out, lse = (x[0] for x in flash.attend(*(x[None] for x in (folded, *prefix)), 0.3))
    merged = shared_prefix_attention(*own, *prefix, Shape(lengths, 0.3, None)).reshape(2, -1, 8)
    grad, operands = torch.ones_like(folded), (folded, *prefix)
    alone = flash.query_gradient(grad, operands, (out, lse), 0.3)
    mixed = flash.query_gradient(grad, operands, (merged, lse), 0.3)
    assert (alone - mixed).norm() > 0.01 * mixed.norm()


@pytest.mark.parametrize("window", [None, 6])
def test_the_last_queries_alone_are_the_last_rows_of_all(window):
    own, prefix, lengths = _qkv(torch.float64)
    last = torch.tensor(lengths).cumsum(0) - 1
    whole = _gradients(lambda o: _packed(prefix, Shape(lengths, 0.3, window))(o)[:, last], own)
    asked = [own[0][:, last], *own[1:]]
    some = _gradients(_packed(prefix, Shape(lengths, 0.3, window, last_only=True)), asked)
    whole[1] = whole[1][:, last]
    for ours, theirs in zip(some, whole, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-14)


class _Untrimmed(PackedModel):
    """Every row of the last layer is computed."""

    def _check_answers_like_the_base(self):
        self._last_layer.index = None


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_trimmed_last_layer_changes_nothing(family, checkpointing, monkeypatch):
    model = toy_model(family, torch.float64)
    material = _battery(model, torch.float64)
    loss, gradients, logits = _ours(model, *material, torch.float64, checkpointing)
    monkeypatch.setattr("tests.integration.prefix.test_equals_peft.PackedModel", _Untrimmed)
    whole_loss, whole, whole_logits = _ours(model, *material, torch.float64, checkpointing)
    assert abs(loss - whole_loss) <= 1e-12 * whole_loss
    assert torch.allclose(logits, whole_logits, rtol=0, atol=1e-12)
    assert _worst(gradients, whole) <= 1e-12


@pytest.mark.parametrize("longest", [0, 12])
def test_it_reads_the_rows_that_it_should(longest, monkeypatch):
    """Negative control: a last layer's row that is one early is seen, where all are and where long suffixes' are."""
    model = toy_model("qwen3", torch.float64)
    material = _battery(model, torch.float64)
    early = [len(pair.suffix_ids) > longest for pair in material[2]]
    _, _, logits = _ours(model, *material, torch.float64)

    def shifted(pairs, prefixes):
        ids, positions, last, policies = rows_of(pairs, prefixes)
        moved = [row - (len(pair.suffix_ids) > longest) for row, pair in zip(last, pairs, strict=True)]
        return ids, positions, moved, policies

    monkeypatch.setattr("alora.prefix.packed.rows_of", shifted)
    monkeypatch.setattr(PackedModel, "_check_answers_like_the_base", lambda self: None)
    _, _, found = _ours(model, *material, torch.float64)
    assert ((logits - found)[:, :2].abs().amax(1) > 1e-3).tolist() == early
    assert any(early)
    assert (longest == 0) == all(early)


def test_behind_a_pass_the_model_is_the_base_again():
    model = toy_model("qwen3", torch.float64)
    adapters, prefixes, pairs = _battery(model, torch.float64)
    ids = torch.tensor([prefixes[1]])
    wanted = model(ids).logits
    packed = PackedModel(model, Bank(model, adapters, dtype=torch.float64))
    packed.label_logits([packed.prefix_kv(prefix) for prefix in prefixes], pairs)
    assert torch.allclose(model(ids).logits, wanted, rtol=0, atol=1e-12)


def test_prefix_kv_is_the_bases_own_bytes():
    model = toy_model("qwen3")
    packed = PackedModel(model, Bank(model, [random_adapter(model)]))
    ids = list(range(20, 40))
    ours, stock = packed.prefix_kv(ids), model.get_decoder()(torch.tensor([ids]), use_cache=True).past_key_values
    for (k, v), layer in zip(ours.layers, stock.layers, strict=True):
        assert torch.equal(k, layer.keys[0])
        assert torch.equal(v, layer.values[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_prefixes_in_one_forward_are_those_of_one_after_another(family):
    """Ragged ones, some longer than a sliding window; what pads the shorter ones is in nobody's KV."""
    model = toy_model(family, torch.float64)
    packed = PackedModel(model, Bank(model, [random_adapter(model, dtype=torch.float64)], dtype=torch.float64))
    prefixes = [tuple(range(20 + length, 20 + 2 * length)) for length in (5, 21, 13, 40)]
    together = packed.run_prefixes(prefixes)
    for ids, found in zip(prefixes, together, strict=True):
        alone = packed.prefix_kv(ids)
        assert found.length == len(ids)
        for ours, theirs in zip(found.layers, alone.layers, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    shifted = packed.run_prefixes([(prefixes[0][0], *ids) for ids in prefixes])
    assert (shifted[1].layers[1][0][:, :21] - together[1].layers[1][0]).abs().max() > 1e-3


@pytest.mark.parametrize("order", [[0, 0, 1, 1], [1, 0, 1, 2, 0, 1], [3, 3, 3], [0, 2, 5, 2]], ids=str)
def test_rows_are_placed_with_their_policy_and_come_back(order):
    route, rows = Route.of_rows(order, CPU), torch.arange(1.0, 1 + 2 * len(order)).view(-1, 2).requires_grad_()
    placed = route.scatter(rows)
    assert placed.shape == (len(set(order)), max(map(order.count, order)), 2)
    for place, policy in enumerate(sorted(set(order))):
        own = [number for number, other in enumerate(order) if other == policy]
        assert torch.equal(placed[place, : len(own)], rows[own])
        assert not placed[place, len(own) :].any()
    assert torch.equal(route.gather(placed), rows)
    route.gather(placed * 3).sum().backward()
    assert torch.equal(rows.grad, torch.full_like(rows, 3.0))


@pytest.mark.parametrize(
    ("capability", "dtype", "width", "taken"),
    [
        ((8, 0), torch.bfloat16, 128, True),
        ((9, 0), torch.float16, 256, True),
        ((7, 5), torch.bfloat16, 128, False),
        ((9, 0), torch.float32, 128, False),
        ((9, 0), torch.bfloat16, 100, False),
        ((9, 0), torch.bfloat16, 264, False),
    ],
)
def test_the_fused_kernel_is_asked_of_gpus_that_have_it(capability, dtype, width, taken, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    queries = SimpleNamespace(device=torch.device("cuda"), dtype=dtype, shape=(2, 5, width))
    assert flash.has_kernel(queries) is taken


def test_each_policy_is_clipped_as_a_model_of_its_own():
    model = toy_model("qwen3", torch.float64)
    adapters, prefixes, pairs = _battery(model, torch.float64)
    bank = Bank(model, adapters, dtype=torch.float64, trainable=True)
    packed = PackedModel(model, bank).train()
    packed.label_logits([packed.prefix_kv(prefix) for prefix in prefixes], pairs)[:, 0].sum().backward()
    bank.release()
    before = [[half.clone() for pair in bank.gradients(policy).values() for half in pair] for policy in range(3)]
    norms = [torch.stack([half.norm() for half in halves]).norm().item() for halves in before]
    limit = sum(sorted(norms)[1:]) / 2  # one policy is above it, two are below
    bank.clip_gradients(limit)
    for policy, (halves, norm) in enumerate(zip(before, norms, strict=True)):
        factor = min(1.0, limit / norm)
        clipped = [half for pair in bank.gradients(policy).values() for half in pair]
        assert all(torch.allclose(one, factor * other, rtol=1e-5) for one, other in zip(clipped, halves, strict=True))


def test_the_fused_backward_on_a_gpu_is_asked_without_cumulative_lengths(monkeypatch):
    """A tensor there, even an empty one, asks CUDA for rows of many lengths: "batch size must be positive"."""
    asked = []

    def kernel(*arguments, **options):
        asked.append(arguments)
        return arguments[1:4]

    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_backward", kernel)
    q, kv, lse = (torch.empty(*shape, device="meta") for shape in ((2, 5, 8), (2, 7, 8), (2, 5)))
    assert flash.query_gradient(q, (q, kv, kv), (q, lse), 0.3).shape == q.shape
    (arguments,) = asked
    assert arguments[6:10] == (None, None, 5, 7)
