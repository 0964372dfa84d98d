"""A frozen base in parts: each process holds a share of every layer (FSDP2, ``torch.distributed.fsdp.fully_shard``).

A layer's weights are gathered when its forward or backward needs them and dropped after it. The embedding, the final
norm and the head stay whole: label logits read single rows of the head. Adapters stay whole too; they are small, and
:mod:`alora.training.gradients` adds their gradients.
"""

from dataclasses import replace

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from alora.base.load import LoadedBase, choose_device, choose_dtype, load_base
from alora.config.schema import BaseSettings, Recipe
from alora.errors import BaseError
from alora.training.processes import Processes


def open_base(recipe: Recipe, processes: Processes) -> LoadedBase:
    """The base that a recipe trains on, in parts where it asks for that and there are several processes."""
    if recipe.training.shard_base and processes.count > 1:
        return load_sharded(recipe.base, processes)
    return load_base(recipe.base, progress=processes.first)


def whole(base: LoadedBase, recipe: Recipe) -> LoadedBase:
    """``base`` as one process can score with it: loaded once more where parts of it lie elsewhere."""
    return load_base(recipe.base) if is_sharded(base.model) else base


def load_sharded(settings: BaseSettings, processes: Processes) -> LoadedBase:
    """Load a base into CPU memory and leave this process's share of its layers on its device."""
    if settings.quantization not in (None, "none"):
        raise BaseError(
            f"training.shard_base=true splits the weights that base.quantization={settings.quantization} packs; use "
            "one of the two"
        )
    device = choose_device(settings.device)
    dtype = str(choose_dtype(settings.dtype, device)).removeprefix("torch.")
    base = load_base(replace(settings, device="cpu", dtype=dtype), progress=processes.first)
    shard_layers(base.model, device, processes.count)
    return base


def shard_layers(model: nn.Module, device: torch.device, count: int) -> None:
    """Split each decoder layer of ``model`` over ``count`` processes, in place; the rest goes to ``device`` whole."""
    mesh = init_device_mesh(device.type, (count,))
    decoder, layers = _layers(model)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    whole = {parameter for parameter in model.parameters() if id(parameter) not in inside}
    with torch.no_grad():
        for parameter in whole:
            parameter.data = parameter.data.to(device)
        for buffer in model.buffers():
            buffer.data = buffer.data.to(device)
    # The root gathers nothing itself; it lets the next layer be gathered while one computes.
    fully_shard(decoder, mesh=mesh, ignored_params=whole)


def is_sharded(model: nn.Module) -> bool:
    """Whether parts of ``model`` lie on other processes."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _layers(model: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    find = getattr(model, "get_decoder", None)
    decoder = find() if callable(find) else None
    layers = getattr(decoder, "layers", None)
    if not isinstance(decoder, nn.Module) or not isinstance(layers, nn.ModuleList):
        raise BaseError(f"{type(model).__name__} has no list of decoder layers to split; set training.shard_base=false")
    return decoder, layers
