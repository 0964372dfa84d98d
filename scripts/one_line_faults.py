"""Faults of one line each over the core, by room: what stands in a file, and what is put in its place.

``scripts/plant_faults.py`` plants them one by one and runs the tests of the room, which must fail.
"""

# ruff: noqa: E501 a fault is a line

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """``text`` stands once in ``file`` (below ``alora/``); ``fault`` is put in its place."""

    file: str
    text: str
    fault: str


# What a room's faults are looked for by, the fastest first.
TESTS = {
    "prefix": ("tests/unit/prefix", "tests/integration/prefix"),
    "adapter": ("tests/unit/adapter", "tests/integration/prefix", "tests/integration/training", "tests/integration/identity"),
    "training": ("tests/unit/training", "tests/unit/data/test_folds.py", "tests/integration/training"),
    "identity": ("tests/unit/identity", "tests/integration/identity"),
    "bundle": ("tests/unit/bundle", "tests/integration/bundle", "tests/integration/test_received_folders.py"),
    "prompt": ("tests/unit/prompt",),
    "guard": ("tests/unit/guard", "tests/integration/guard"),
    "verdict": ("tests/unit/test_verdict.py", "tests/unit/evaluation"),
    "plugin": ("tests/vllm/test_hash_sharing.py", "tests/vllm/test_token_mapping.py", "tests/vllm/test_right.py",
               "tests/vllm/test_shared.py", "tests/vllm/test_isolated.py", "tests/vllm/test_new_weights.py"),
}  # fmt: skip

FAULTS: dict[str, tuple[Fault, ...]] = {
    "prefix": (
        Fault("prefix/attention.py", "torch.sigmoid(l2 - l1)", "torch.sigmoid(l1 - l2)"),
        Fault("prefix/attention.py", "max(0, length - window + 1)", "max(0, length - window + 2)"),
        Fault("prefix/attention.py", "[None, :] > own_N[:, None]", "[None, :] >= own_N[:, None]"),
        Fault("prefix/attention.py", "return dq.mul_(scaling).reshape(q.shape)", "return dq.reshape(q.shape)"),
        Fault("prefix/own_suffix.py", "(distance < 0) | (distance >= shape.window)", "(distance < 0) | (distance > shape.window)"),
        Fault("prefix/own_suffix.py", "queries.pad_with_zeros(do), queries", "queries.pad(do), queries"),
        Fault("prefix/passes.py", "range(start, start + len(pair.suffix_ids))", "range(start + 1, start + 1 + len(pair.suffix_ids))"),
        Fault("prefix/passes.py", "last.append(len(ids) - 1)", "last.append(len(ids) - 2)"),
        Fault("prefix/passes.py", "torch.tensor(sizes, device=device).cumsum(0) - 1", "torch.tensor(sizes, device=device).cumsum(0) - 1 - (torch.tensor(sizes) > 12).long()"),
        Fault("prefix/packed.py", "return hidden_nD[back]", "return hidden_nD"),
        Fault("prefix/packed.py", "torch.tensor(last, device=device)", "torch.tensor([row - (len(pair.suffix_ids) > 12) for row, pair in zip(last, packed)], device=device)"),
        Fault("prefix/side_by_side.py", "(length_n1 - 1 if last_only else own_nS)", "(length_n1 - 2 if last_only else own_nS)"),
        Fault("prefix/store.py", "self._group_of[ids] for ids in missing", "(ids,) for ids in missing"),
        Fault("prefix/store.py", "self._kept.get(ids) for ids in wanted", "next((kv for kept, kv in self._kept.items() if (len(kept), kept[:4]) == (len(ids), ids[:4])), None) for ids in wanted"),
        Fault("prefix/last_layer.py", "self._bank.exchange(route))", "self._bank.exchange(None))"),
    ),
    "adapter": (
        Fault("adapter/bank.py", "first[policy] + nth[policy]", "first[policy]"),
        Fault("adapter/bank.py", "is not x_1ND or self._input[1] is not route", "is not x_1ND"),
        Fault("adapter/bank.py", "else self.scaling_P[route.chosen]", "else self.scaling_P[: len(route.policies)]"),
        Fault("adapter/bank.py", ".clamp(max=1.0)", ""),
        Fault("adapter/bank.py", "self.b_POR[index][policy, :, :rank] = b_OR", "self.b_POR[index][0, :, :rank] = b_OR"),
        Fault("adapter/folder.py", "math.sqrt(self.rank) if self.rank_stabilised else self.rank", "self.rank"),
        Fault("adapter/folder.py", "[spec.rank, spec.scaling, spec.invocation_ids]", "[spec.rank, spec.scaling]"),
        Fault("adapter/folder.py", "=list(spec.invocation_ids) if", "=list(spec.invocation_ids)[1:] if"),
        Fault("adapter/product.py", "x_PMD, scaling.alpha)", "x_PMD, 1.0)"),
    ),
    "training": (
        Fault("training/loss.py", "answers.logits_nL + answers.weights_nL.log()", "answers.logits_nL - answers.weights_nL.log()"),
        Fault("training/loss.py", "1.0 / counts[policy]", "1.0 / len(policies)"),
        Fault("training/examples.py", "for k in others if k != target.fold", "for k in others"),
        Fault("training/examples.py", "sum(self.folds[:policy]) + fold", "sum(self.folds[:policy])"),
        Fault("training/model.py", "None if bool(moved_P.all()) else", "None if True else"),
        Fault("training/model.py", "first.lerp_(gradient, 1 - beta1)", "first.lerp_(gradient, beta1)"),
        Fault("training/model.py", "held[list(policies)] = 0", "held[list(policies)] += 0"),
        Fault("training/schedule.py", "min(1.0, RATE_WIDTH / width)", "min(1.0, width / RATE_WIDTH)"),
        Fault("training/standings.py", "or loss < standing.best_loss", "or loss > standing.best_loss"),
        Fault("training/examples.py", "if found != len(prefix_ids):", "if False:"),
        Fault("training/layout.py", "whole[max(whole)]", "whole[min(whole)]"),
    ),
    "identity": (
        Fault("identity/equality.py", "call.padding_B[row] : call.activation_B[row]]", "call.padding_B[row] : call.activation_B[row] - 1]"),
        Fault("identity/equality.py", "return bits(first) != bits(second)", "return first != second"),
        Fault("identity/equality.py", "if site in reached and not int(", "if site not in reached and not int("),
        Fault("identity/equality.py", "range(first_touched + 1, layers)", "range(first_touched + 2, layers)"),
        Fault("identity/certificate.py", "if not self.passed:\n", "if False:\n"),
        Fault("identity/certificate.py", "if self.adapter_digest != adapter_digest:", "if False:"),
    ),
    "bundle": (
        Fault("bundle/light.py", "if manifest.activated and invocation is None:", "if False:"),
        Fault("bundle/light.py", "if not manifest.activated and invocation is not None:", "if False:"),
        Fault("bundle/light.py", "if manifest.activated and invocation != recorded:", "if False:"),
        Fault("bundle/golden.py", "math.inf if any(map(math.isnan, differences)) else", ""),
        Fault("bundle/golden.py", "max(TOLERANCES[dtype], TOLERANCES[stored_dtype])", "10.0"),
    ),
    "prompt": (
        Fault("prompt/tokens.py", "if not self.forbidden.isdisjoint(ids):", "if False:"),
        Fault("prompt/render.py", '_FORGED.sub("\\n> ", _spoken(message))', "_spoken(message)"),
        Fault("prompt/render.py", "len(set(labels)) < len(labels)", "False"),
        Fault("prompt/truncate.py", "_take(turns[::-1], budget - front_budget)[::-1]", "_take(turns, budget - front_budget)"),
        Fault("prompt/truncate.py", "room // SHARED", "room"),
        Fault("prompt/template.py", "if theirs not in (ours + template.generation, ours):", "if False:"),
    ),
    "guard": (
        Fault("guard/core.py", '"block" if any(', '"block" if all('),
        Fault("guard/core.py", "complete=all(", "complete=any("),
        Fault("guard/verdicts.py", 'closed = request.on_failure == "closed"', 'closed = request.on_failure == "open"'),
        Fault("guard/core.py", "whole > self._longest", "whole < 0"),
        Fault("guard/core.py", "self._held.subtract(names)", "self._held.clear()"),
    ),
    "verdict": (
        Fault("verdict.py", "if probabilities[0] < point.threshold:", "if probabilities[0] <= point.threshold:"),
        Fault("verdict.py", "- top) / temperature + bias)", "- top + bias) / temperature)"),
        Fault("evaluation/calibration.py", "costs[0] / sum(costs)", "costs[1] / sum(costs)"),
    ),
    "plugin": (
        Fault("vllm_plugin/prefix_hash.py", "if end_token_idx <= carried.activation_index:", "if end_token_idx < carried.activation_index:"),
        Fault("vllm_plugin/prefix_hash.py", "max(carried.activation_index - start_token_idx, 0)", "0"),
        Fault("vllm_plugin/prefix_hash.py", "if token_ids[:end] == seen_ids[:end] else", "if True else"),
        Fault("vllm_plugin/token_mapping.py", "max(lora_request.activation_index - computed, 0)", "max(lora_request.activation_index, 0)"),
        Fault("vllm_plugin/prefix_hash.py", "PrefixKey(request.cache_salt,", "PrefixKey(None,"),
    ),
}  # fmt: skip
