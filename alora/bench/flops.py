"""Floating-point operations of both ways to train a pair, to compare a measured ratio with the possible one.

One multiply-add counts two. Counted are the matrix products: the base's linear layers, attention over the pairs of
positions that see each other, the adapters and the head. Left out are norms, softmax and the rotary embedding, which
both ways have in the same proportion.

- Backward through a frozen linear layer is one product (the gradient of its input) where forward is one.
- Attention is two products forward and five backward; through a constant prefix three, because the gradients of its
  keys and values are not needed.
- An adapter is one product forward and two backward per factor.
- The first layer's input is an embedding without gradient, which saves its q, k and v a product.
- Of the last layer ours runs attention and the MLP on the rows that are read alone: one of a suffix, and of a prefix
  one in the MLP and none in attention. The full-sequence ways run all of it, as their models come.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from alora.bench.shapes import BaseShape

_FORWARD, _BACKWARD, _BACKWARD_PREFIX = 2, 5, 3  # products of attention
_READ_INPUT = ("q_proj", "k_proj", "v_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class FlopCount:
    shape: BaseShape
    rank: int
    targets: Sequence[str]

    @property
    def linear(self) -> int:
        return 2 * self.shape.layers * sum(i * o for i, o in self.shape.linears.values())

    @property
    def adapter(self) -> int:
        sizes = (sum(self.shape.linears[name]) for name in self.targets)
        return 2 * self.shape.layers * self.rank * sum(sizes)

    @property
    def saved(self) -> int:
        """What backward need not do for one token: the first layer's q, k and v."""
        return 2 * sum(self.shape.linears[name][0] * self.shape.linears[name][1] for name in _READ_INPUT)

    @property
    def mlp(self) -> int:
        return 2 * sum(i * o for name, (i, o) in self.shape.linears.items() if name in _MLP)

    @property
    def mlp_adapter(self) -> int:
        return 2 * self.rank * sum(sum(self.shape.linears[name]) for name in self.targets if name in _MLP)

    def attention(self, seen: int, products: int, layers: int | None = None) -> int:
        """``products`` matrix products over ``seen`` pairs (query position, key position); of all layers, or some."""
        layers = self.shape.layers if layers is None else layers
        return 2 * products * layers * self.shape.heads * self.shape.width * seen

    def _trimmed(self, seen: int, read: int, products: int) -> int:
        return self.attention(seen, products, self.shape.layers - 1) + self.attention(read, products, 1)

    def head(self, rows: int, tokens: int) -> int:
        """Forward and backward of the head: logits of ``tokens`` vocabulary entries at ``rows`` positions."""
        return 4 * rows * tokens * self.shape.hidden

    def full_sequence(self, prefix: int, suffix: int, logit_rows: int) -> int:
        """Training one pair over the whole prompt; logits of the vocabulary at ``logit_rows`` positions."""
        tokens = prefix + suffix
        layers = tokens * (2 * self.linear - self.saved) + 3 * suffix * self.adapter
        return layers + self.attention(_causal(tokens), _FORWARD + _BACKWARD) + self.head(logit_rows, self.shape.vocab)

    def prefix(self, prefix: int) -> int:
        """The shared part: the base's forward over the prefix, without gradient."""
        return prefix * self.linear - (prefix - 1) * self.mlp + self._trimmed(_causal(prefix), 0, _FORWARD)

    def suffix(self, prefix: int, suffix: int, labels: int) -> int:
        """Training one pair behind a prefix that is there already; the floor of a pair when P goes to infinity."""
        layers = suffix * (2 * self.linear - self.saved) + 3 * suffix * self.adapter
        layers -= (suffix - 1) * (2 * self.mlp + 3 * self.mlp_adapter)
        own = self._trimmed(_causal(suffix), suffix, _FORWARD + _BACKWARD)
        shared = self._trimmed(suffix * prefix, prefix, _FORWARD + _BACKWARD_PREFIX)
        return layers + own + shared + self.head(1, labels)

    def packed(self, prefix: int, suffix: int, labels: int, policies: int) -> float:
        """Training one pair of P behind one prefix."""
        return self.prefix(prefix) / policies + self.suffix(prefix, suffix, labels)

    def lora_prefill(self, prefix: int, suffix: int, cached: int = 0) -> int:
        """Scoring one standard LoRA, adapted from token 0: the prompt behind ``cached`` tokens, logits at its end."""
        tokens = prefix + suffix
        seen = _causal(tokens) - _causal(cached)
        forward = (tokens - cached) * (self.linear + self.adapter) + self.attention(seen, _FORWARD)
        return forward + self.head(1, self.shape.vocab) // 2

    def scored_suffix(self, prefix: int, suffix: int, labels: int) -> int:
        """Scoring one adapter behind a prefix that is there already."""
        layers = suffix * (self.linear + self.adapter) - (suffix - 1) * (self.mlp + self.mlp_adapter)
        seen = suffix * prefix + _causal(suffix)
        return layers + self._trimmed(seen, prefix + suffix, _FORWARD) + self.head(1, labels) // 2


def _causal(tokens: int) -> int:
    return tokens * (tokens + 1) // 2
