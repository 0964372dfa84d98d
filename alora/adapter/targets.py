"""Which layers of a base an adapter adapts."""

from collections.abc import Collection, Sequence

from torch import nn

from alora.config.schema import ALL_LINEAR
from alora.errors import AdapterError


def target_modules(model: nn.Module, targets: Collection[str]) -> dict[str, nn.Linear]:
    """The linear layers of ``model`` that ``targets`` name, as PEFT matches names: whole path or its last part.

    ``all-linear`` names all of them but the output layer. AdapterError where a target matches nothing.
    """
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    output = getattr(model, "get_output_embeddings", lambda: None)()
    matches: dict[str, nn.Linear] = {}
    for target in targets:
        if target == ALL_LINEAR:
            found = {name: module for name, module in linears.items() if module is not output}
        else:
            found = {name: module for name, module in linears.items() if name == target or name.endswith(f".{target}")}
        if not found:
            kinds = sorted({name.rsplit(".", 1)[-1] for name in linears})
            raise AdapterError(
                f"adapter target {target!r} matches no linear layer of this base; it has {', '.join(kinds)}"
            )
        matches |= found
    return dict(sorted(matches.items()))


def trainable_modules(model: nn.Module, targets: Sequence[str]) -> dict[str, nn.Linear]:
    """:func:`target_modules` that pass :func:`require_linear`; AdapterError where the output layer is among them."""
    require_linear(model, targets)
    found, output = target_modules(model, targets), getattr(model, "get_output_embeddings", lambda: None)()
    if head := [name for name, module in found.items() if module is output]:
        raise AdapterError(
            f"adapter.targets names {head[0]}, the base's output layer, which alora trains no adapter of; leave it out"
        )
    return found


def require_linear(model: nn.Module, targets: Collection[str]) -> None:
    """AdapterError where PEFT takes a target for the fused experts of a mixture, of which it makes no aLoRA.

    It does so also for layers of that name outside the experts, which some classes have
    (``_convert_peft_config_moe``, PEFT 0.21).
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    def is_taken(target: str) -> bool:
        config = LoraConfig(target_modules=[target])
        try:
            convert_peft_config_for_transformers(config, model, None)
        except ValueError:  # one of a pair that is fused
            return True
        return target not in (config.target_modules or ())

    if ALL_LINEAR in targets:
        targets = {name.rpartition(".")[2] for name in target_modules(model, targets)}
    taken = [target for target in sorted(targets) if is_taken(target)]
    if taken:
        raise AdapterError(
            f"PEFT takes {', '.join(taken)} of this base for its experts, of which alora trains no adapter; "
            "leave them out of adapter.targets (attention alone works)"
        )
