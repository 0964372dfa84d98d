"""One call's caches to look at: base, aLoRA, standard LoRA and the planted faults, from a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from plots import difference_figure

from alora.base.load import load_base
from alora.config.saved import read_saved_recipe
from alora.data.splits import read_splits
from alora.identity.capture import Call, Capture, Site, capture, make_calls, twin
from alora.identity.certify import with_adapter
from alora.identity.controls import CONTROLS, Models
from alora.identity.equality import SiteCount, adapted_modules, changed_shares, compare, count_sites, reached_sites
from alora.policy import load_policies
from alora.prompt.render import Renderer
from alora.training.layout import ADAPTER, RUN_FILE

BASE, ALORA = "base, run twice", "aLoRA"


@dataclass(frozen=True)
class Look:
    """The caches of ``call`` by the base, and by each of ``runs``: name → cache."""

    policy: str
    call: Call
    text: str  # around the activation
    bare: Any
    base: Capture
    runs: Mapping[str, Capture]
    reached: frozenset[Site]

    @property
    def activation(self) -> int:
        """The activation index."""
        return self.call.activation_B[0]

    def figure(self, names: Sequence[str] = ()) -> Figure:
        """Where each run's cache differs from the base's; all runs unless some are named."""
        maps = {name: changed_shares(self.call, self.base, self.runs[name]) for name in names or self.runs}
        return difference_figure({name: next(iter(rows.values())) for name, rows in maps.items()}, self.activation)

    def counts(self, name: str) -> dict[Site, SiteCount]:
        """Per site, elements compared and elements that differ."""
        return count_sites(self.call, self.base, self.runs[name])

    def largest_change(self, name: str) -> float:
        """Of any value before the activation."""
        return _largest(self.base, self.runs[name], self.activation)

    def finding(self, name: str) -> str:
        """The first thing that the check finds; empty when the definition holds."""
        found = compare(self.call, self.base, self.runs[name], self.reached)
        return str(found[0]) if found else ""

    def prefix_alone(self) -> tuple[float, float]:
        """The prefix in a call of its own against the same tokens here: share of elements that differ, and by how much
        at most."""
        ids, mask, places = self.call.input_ids_BT, self.call.attention_mask_BT, self.call.position_ids_BT
        ids, mask, places = (tensor[:, : self.activation] for tensor in (ids, mask, places))
        alone = capture(self.bare, replace(self.call, input_ids_BT=ids, attention_mask_BT=mask, position_ids_BT=places))
        changed = [alone.sites[site] != kept[:, : self.activation] for site, kept in self.base.sites.items()]
        share = sum(int(part.sum()) for part in changed) / sum(part.numel() for part in changed)
        return share, _largest(self.base, alone, self.activation)


def look(run: str | Path) -> Look:
    """The caches of one held-out conversation by the only adapter of a run, which loads its base again.

    Raises:
        AloraError: the run, its rows or its base cannot be read.
    """
    recipe, adapter = read_saved_recipe(Path(run, RUN_FILE)), Path(run, ADAPTER)
    (policy,) = load_policies(recipe.policy, recipe.policies)
    splits, _ = read_splits(recipe.data, [policy])
    base = load_base(recipe.base, progress=False)
    renderer = Renderer(base.tokenizer, recipe.prompt, recipe.base.template_kwargs)
    prompts = [renderer.prompt(row.conversation, policy) for row in splits.measured(policy.id)[1][:2]]
    call = make_calls(prompts, base.model, renderer.suffix(policy).invocation_ids)[1]
    bare = twin(base.model)
    models = Models(with_adapter(bare, adapter), with_adapter(bare, adapter, alora_invocation_tokens=None))
    runs = {BASE: capture(bare, call), ALORA: capture(models.alora, call, alora_offsets=call.offsets())}
    runs |= {control.name: control.run(models, call) for control in CONTROLS}
    start = call.activation_B[0]
    text = base.tokenizer.decode(call.input_ids_BT[0, start - 12 : start + 8])
    reached = reached_sites(adapted_modules(models.alora), base.model.config.num_hidden_layers)
    return Look(policy.id, call, str(text), bare, capture(bare, call), runs, reached)


def _largest(one: Capture, other: Capture, before: int) -> float:
    pairs = [(kept[:, :before], other.sites[site][:, :before]) for site, kept in one.sites.items()]
    return max((new - old).abs().max().item() for old, new in pairs)
