"""Judge a pair of captures: equal as integers before the activation, different at it.

The definition, per row of a call: every K and V of every layer, and the last layer's output, at every token before
the activation index has the same bits with and without the adapter; and at the activation index every tensor that the
adapter can reach (:mod:`alora.identity.reach`) has at least one element with other bits.

Padding holds no token and is left out: under eager attention (transformers 5.19) a padding position, all of whose keys
are masked, averages over the whole row, the adapted suffix included. No token ever attends to it.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import astuple, dataclass
from typing import Self

import torch
from torch import Tensor

from alora.identity.capture import Call, Capture, Site

PREFIX, ACTIVATION = "prefix", "activation"
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Differs = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class KVFinding:
    """One way in which a pair of captures breaks the definition.

    ``position`` counts from the row's own first token. ``elements`` is how many elements of that token's tensor
    differ; for an ``activation`` finding it is 0, the fault being that none does.
    """

    check: str
    case: str
    site: str
    row: int
    position: int
    elements: int

    def __str__(self) -> str:
        what = f"{self.elements} element(s) differ" if self.elements else "no difference where one must be"
        return f"{self.case}, row {self.row}, {self.site}, position {self.position}: {what}"


@dataclass(frozen=True)
class SiteCount:
    """Elements compared and elements that differ at one site, before the activation and at it, over all rows."""

    prefix_elements: int
    prefix_different: int
    activation_elements: int
    activation_different: int

    def __add__(self, other: Self) -> Self:
        """The counts of two calls together."""
        return type(self)(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def bits(tensor: Tensor) -> Tensor:
    """The same memory, read as integers: +0.0 and -0.0 differ, and so do two NaNs with other payloads."""
    return tensor.view(_INTEGERS[tensor.element_size()]) if tensor.is_floating_point() else tensor


def bits_differ(first: Tensor, second: Tensor) -> Tensor:
    """Elementwise: are the integers behind the floats different?"""
    return bits(first) != bits(second)


def compare(call: Call, base: Capture, adapted: Capture, reached: Collection[Site]) -> list[KVFinding]:
    """All findings of a pair, in order of row, position and layer; empty when the definition holds."""
    return [*prefix_findings(call, base, adapted), *inert_findings(call, base, adapted, reached)]


def prefix_findings(call: Call, base: Capture, adapted: Capture, differs: Differs = bits_differ) -> list[KVFinding]:
    """Tokens before the activation whose bits the adapter changed; at most the first per site and row."""
    findings = []
    for site, row, count_T in _differences(call, base, adapted, differs):
        count_T = count_T[call.padding_B[row] : call.activation_B[row]]
        changed = count_T.nonzero()
        if len(changed):
            position = int(changed[0])
            findings.append(KVFinding(PREFIX, call.name, str(site), row, position, int(count_T[position])))
    return sorted(findings, key=lambda finding: (finding.row, finding.position))


def inert_findings(call: Call, base: Capture, adapted: Capture, reached: Collection[Site]) -> list[KVFinding]:
    """Sites that the adapter can reach but that show no change at the activation token: it is late, inert or off."""
    return [
        KVFinding(ACTIVATION, call.name, str(site), row, call.activation_B[row] - call.padding_B[row], 0)
        for site, row, count_T in _differences(call, base, adapted)
        if site in reached and not int(count_T[call.activation_B[row]])
    ]


def count_sites(call: Call, base: Capture, adapted: Capture) -> dict[Site, SiteCount]:
    """Per site, how much was compared and how much differs: the figures of the certificate."""
    totals = {site: [0, 0, 0, 0] for site in base.sites}
    for site, row, count_T in _differences(call, base, adapted):
        start, index, width = call.padding_B[row], call.activation_B[row], base.sites[site][0, 0].numel()
        prefix = ((index - start) * width, int(count_T[start:index].sum()))
        for slot, value in enumerate((*prefix, width, int(count_T[index]))):
            totals[site][slot] += value
    return {site: SiteCount(*counts) for site, counts in totals.items()}


def changed_shares(call: Call, base: Capture, adapted: Capture) -> dict[str, dict[str, list[float]]]:
    """Where a pair differs, to look at: row name → site → per token the share of elements with other bits.

    Padding is left out, so the first entry is the row's own first token.
    """
    rows: dict[str, dict[str, list[float]]] = {}
    for site, row, count_T in _differences(call, base, adapted):
        width = base.sites[site][0, 0].numel()
        shares_T = count_T[call.padding_B[row] :].double() / width
        rows.setdefault(f"{call.name}, row {row}", {})[str(site)] = shares_T.tolist()
    return rows


def _differences(
    call: Call, base: Capture, adapted: Capture, differs: Differs = bits_differ
) -> Iterator[tuple[Site, int, Tensor]]:
    """Yield (site, row, number of differing elements at each position of the row)."""
    for site, tensor in base.sites.items():
        count_BT = differs(tensor, adapted.sites[site]).flatten(2).sum(dim=2)
        for row in range(len(call.activation_B)):
            yield site, row, count_BT[row].cpu()
