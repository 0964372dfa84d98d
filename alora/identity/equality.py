"""Judge a pair of captures: equal as integers before the activation, different at it.

The definition, per row of a call: every K and V of every layer, and the last layer's output, at every token before
the activation index has the same bits with and without the adapter; and at the activation index every tensor that the
adapter can reach has at least one element with other bits.

K (or V) of layer n can depend on the adapter in two ways: layer n's own projection to K (or V) is adapted, or any
module of an earlier layer is, through the hidden state. So K of layer n must differ at the activation token when
``k_proj`` of layer n is adapted or when some layer before n holds an adapted module; V likewise; and the last layer's
output must differ when any layer holds one. One layer of an adapter is enough for all of that, so each adapted module
is also checked by itself.

Padding holds no token and is left out: under eager attention (transformers 5.19) a padding position, all of whose keys
are masked, averages over the whole row, the adapted suffix included. No token ever attends to it.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, Self

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from alora.errors import AdapterError
from alora.identity.capture import OUTPUT, Call, Capture, Site

PREFIX, ACTIVATION = "prefix", "activation"
# Module names of transformers 5.19 that produce K and V; fused ones produce both.
_MODULES = {
    "K": ("k_proj", "key"),
    "V": ("v_proj", "value"),
    "KV": ("kv_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "kv_a_proj_with_mqa", "kv_b_proj"),
}
_MAKES = {name: kinds for kinds, names in _MODULES.items() for name in names}
_LAYER = re.compile(r"\.(\d+)\.")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)$")
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Differs = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class KVFinding:
    """One way in which a pair of captures breaks the definition. ``position`` counts from the row's own first token.
    ``elements`` is how many elements of that token's tensor differ; for an ``activation`` finding it is 0, the fault
    being that none does."""

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
    """Where a pair differs, to look at: row name → site → per token the share of elements with other bits. Padding is
    left out, so the first entry is the row's own first token."""
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


def adapted_modules(model: nn.Module) -> dict[str, Any]:
    """The modules that a ``PeftModel`` adapts, by their names in the base."""
    return {
        name.removeprefix("base_model.model."): module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }


@contextmanager
def record_active(modules: Mapping[str, Any], call: Call, active: set[str]) -> Iterator[None]:
    """Add to ``active`` each module that, in runs of ``call`` inside the block, changes a row's first activated token.
    Each is compared to its own base layer on the same input: a difference that comes from an earlier layer does not
    count. The head gets the last token alone, so that token is compared there."""
    base: dict[str, torch.Tensor] = {}

    def rows_of(name: str, output_BTD: torch.Tensor) -> torch.Tensor:
        if output_BTD.ndim != 3:
            raise AdapterError(
                f"the base calls {name} on the tokens of all rows in one dimension {tuple(output_BTD.shape)}, so "
                "neither PEFT's aLoRA nor this check knows which of them are activated; train the adapter without "
                f"{name.rpartition('.')[2]} in adapter.targets"
            )
        positions = call.activation_B if output_BTD.shape[1] == call.tokens else [-1] * len(call.activation_B)
        return output_BTD[range(len(positions)), positions]

    def keep(name: str) -> Any:
        return lambda _module, _inputs, output: base.__setitem__(name, rows_of(name, output))

    def judge(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            if bits_differ(base[name], rows_of(name, output)).any():
                active.add(name)

        return hook

    hooks = [module.base_layer.register_forward_hook(keep(name)) for name, module in modules.items()]
    hooks += [module.register_forward_hook(judge(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def reached_sites(module_names: Iterable[str], layers: int) -> frozenset[Site]:
    """The sites that must differ at the activation token, for a base of ``layers`` layers. A module outside every layer
    (an embedding) reaches everything; the head reaches no site, only the logits."""
    sites: set[Site] = set()
    first_touched = layers
    for name in module_names:
        if _HEAD.search(name):
            continue
        numbered = _LAYER.search(name)
        layer = int(numbered.group(1)) if numbered else -1
        first_touched = min(first_touched, layer)
        for kind in _MAKES.get(name.rpartition(".")[2], "") if numbered else "":
            sites.add(Site(layer, kind))
    if first_touched < layers:
        sites.add(OUTPUT)
    sites.update(Site(layer, kind) for layer in range(first_touched + 1, layers) for kind in "KV")
    return frozenset(sites)
