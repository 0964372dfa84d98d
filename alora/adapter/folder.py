"""One adapter and its PEFT folder.

The folder is PEFT's own format (``adapter_config.json`` written by ``peft.LoraConfig`` 0.21 and
``adapter_model.safetensors``), so PEFT, vLLM and llama.cpp's converter read it as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import nn

from alora.adapter import CONFIG_FILE, WEIGHTS_FILE
from alora.adapter.targets import target_modules
from alora.atomic import replace_folder, workshop
from alora.config.schema import ALL_LINEAR, AdapterSettings
from alora.errors import AdapterError
from alora.received import Folder, decode

if TYPE_CHECKING:
    from peft import LoraConfig

_KEY_PREFIX = "base_model.model."

# Settings of a LoraConfig that change what the adapter computes in a way that the bank does not.
_UNSUPPORTED = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias", "layer_replication",
                "fan_in_fan_out", "target_parameters", "use_qalora", "trainable_token_indices", "megatron_config",
                "layers_to_transform", "layers_pattern", "exclude_modules")  # fmt: skip
# Those that PEFT takes as on, with its defaults, even when they are empty.
_VARIANTS = ("use_bdlora", "arrow_config", "kasa_config", "monteclora_config")
# Ways to begin that leave the base's weights alone; PEFT's others (PiSSA, OLoRA, LoftQ, ...) change them on loading.
_BASE_UNCHANGED = (True, False, None, "gaussian", "eva", "orthogonal")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LEAST_PRODUCT = 1e-12  # of a module's B @ A: below it nothing is left in any dtype that is served


@dataclass(frozen=True)
class AdapterSpec:
    """Shape of one adapter. ``invocation_ids`` is None for a standard LoRA, which adapts from token 0."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    invocation_ids: tuple[int, ...] | None
    rank_stabilised: bool = False

    @classmethod
    def of(
        cls, settings: AdapterSettings, invocation_ids: tuple[int, ...] | None, rank: int | None = None
    ) -> AdapterSpec:
        """What a recipe asks for; with another ``rank`` alpha follows it, so that the scaling stays."""
        # alpha = 2 r: with it the scaling is 2 at every rank
        alpha = 2.0 * settings.rank if settings.alpha is None else settings.alpha
        alpha = alpha if rank is None else alpha * rank / settings.rank
        return cls(rank or settings.rank, alpha, tuple(sorted(settings.targets)), invocation_ids)

    @property
    def activated(self) -> bool:
        """Whether this is an aLoRA."""
        return self.invocation_ids is not None

    @property
    def scaling(self) -> float:
        """Factor of the LoRA product: alpha / rank, or alpha / sqrt(rank) when rank-stabilised."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter in memory: per adapted module path of the base, its ``(A_RD, B_OR)``."""

    spec: AdapterSpec
    tensors: Mapping[str, tuple[torch.Tensor, torch.Tensor]] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """sha256 of everything that changes the adapter's answers."""
        spec = self.spec
        # scaling, not alpha: two ways to write one adapter have one digest
        digest = hashlib.sha256(json.dumps([spec.rank, spec.scaling, spec.invocation_ids]).encode())
        for name in sorted(self.tensors):
            for tensor in self.tensors[name]:
                digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
                # as bytes: numpy has no bfloat16
                digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @property
    def absent(self) -> list[str]:
        """Modules whose product is zero, or no number: the adapter names them, and adds nothing of use."""
        return [name for name, (a_RD, b_OR) in self.tensors.items() if not _acts(b_OR.float() @ a_RD.float())]


def _acts(product_OD: torch.Tensor) -> bool:
    return bool(product_OD.isfinite().all() and product_OD.abs().max() > LEAST_PRODUCT)


def new_adapter(spec: AdapterSpec, model: nn.Module, seed: int) -> AdapterWeights:
    """A fresh adapter as PEFT initialises it (``LoraLayer.reset_lora_parameters`` 0.21): A uniform, B zero.

    Its spec names the modules that ``all-linear`` stands for. The draw depends on ``seed`` and the module order alone,
    in float32, so it is the same on every device.
    """
    generator = torch.Generator().manual_seed(seed)  # a CPU generator, whatever the device
    tensors, modules = {}, target_modules(model, spec.targets)
    if ALL_LINEAR in spec.targets:
        spec = replace(spec, targets=tuple(sorted({name.rpartition(".")[2] for name in modules})))
    for name, module in modules.items():
        bound = 1 / math.sqrt(module.in_features)  # kaiming_uniform_ with a = sqrt(5), as PEFT calls it
        a_rd = torch.empty(spec.rank, module.in_features).uniform_(-bound, bound, generator=generator)
        tensors[name] = (a_rd, torch.zeros(module.out_features, spec.rank))
    return AdapterWeights(spec, tensors)


def silent_adapter(model: nn.Module, targets: Sequence[str], invocation_ids: tuple[int, ...]) -> AdapterWeights:
    """An aLoRA with B = 0, which changes nothing: it lets the scorer for adapters score the base itself."""
    return new_adapter(AdapterSpec(1, 1.0, tuple(sorted(targets)), invocation_ids), model, seed=0)


def peft_config(spec: AdapterSpec, **more: Any) -> LoraConfig:
    """PEFT's own configuration of an adapter of this shape; ``more`` are further fields of it."""
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,  # pyright: ignore[reportArgumentType] PEFT accepts any number
        lora_dropout=0.0,  # the packed forward has none
        target_modules=list(spec.targets),
        use_rslora=spec.rank_stabilised,
        alora_invocation_tokens=list(spec.invocation_ids) if spec.invocation_ids is not None else None,
        **more,
    )


def save_adapter(weights: AdapterWeights, folder: Path, base_source: str) -> None:
    """Write the PEFT folder whole: next to it first, then renamed over it."""
    config = peft_config(weights.spec, base_model_name_or_path=base_source, inference_mode=True)
    config.target_modules = sorted(weights.spec.targets)  # PEFT's set would be written in the process's hash order
    state = {}
    for name, (a_rd, b_or) in weights.tensors.items():
        state[f"{_KEY_PREFIX}{name}.lora_A.weight"] = a_rd.detach().cpu().contiguous()
        state[f"{_KEY_PREFIX}{name}.lora_B.weight"] = b_or.detach().cpu().contiguous()
    with workshop(folder) as stage:
        staged = stage / folder.name
        staged.mkdir()
        config.save_pretrained(str(staged))
        save_tensors(state, staged / WEIGHTS_FILE, metadata={"format": "pt"})
        replace_folder(staged, folder, (CONFIG_FILE, WEIGHTS_FILE))


def save_tensors(state: Mapping[str, torch.Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the mode that the umask gives; safetensors itself makes it private (0600)."""
    file.touch()
    mode = file.stat().st_mode
    save_file(dict(state), file, metadata)
    file.chmod(mode)


def load_adapter(folder: Path) -> AdapterWeights:
    """Read a PEFT LoRA or aLoRA folder; AdapterError where it is damaged, or uses a PEFT feature that alora does not
    run."""
    config = _read_config(folder)
    try:
        # Read, not mapped: weights in use must not change, or end the process, when someone writes over the file.
        state = load((folder / WEIGHTS_FILE).read_bytes())
    except FileNotFoundError as error:
        raise AdapterError(
            f"{folder} has no {WEIGHTS_FILE}; alora reads safetensors only, so save it again with PEFT"
        ) from error
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{folder / WEIGHTS_FILE} is damaged ({error}); copy or export the adapter again") from error
    except KeyError as error:
        raise AdapterError(f"{folder / WEIGHTS_FILE} holds the dtype {error}; export the adapter again") from error
    tensors = _pair(state, folder)
    spec = _spec(config, folder)
    endings = tuple(f".{target}" for target in spec.targets)
    for name, (a_rd, b_or) in tensors.items():
        if not f".{name}".endswith(endings):  # the dot: o_proj must not match two_proj
            raise AdapterError(
                f"{folder / WEIGHTS_FILE} holds weights of {name!r}, which target_modules of {CONFIG_FILE} does not "
                "name, so some servers would run them and some not; the two files do not belong together"
            )
        if a_rd.shape[0] != spec.rank or b_or.shape[1] != spec.rank:
            raise AdapterError(
                f"{folder}: {name} has A {tuple(a_rd.shape)} and B {tuple(b_or.shape)}, but {CONFIG_FILE} says "
                f"rank {spec.rank}; the two files do not belong together"
            )
    return AdapterWeights(spec, tensors)


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise AdapterError(f"adapter folder {folder} does not exist")
    received = Folder(folder, AdapterError, "export the adapter again")
    if CONFIG_FILE not in received.files:
        raise AdapterError(f"{folder} has no {CONFIG_FILE}, so it is not a PEFT adapter")
    config = received.json(CONFIG_FILE)
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{folder / CONFIG_FILE}: peft_type is not LORA; alora runs LoRA and aLoRA adapters only")
    return config


def _is_set(value: Any) -> bool:
    """Whether a setting has a value; 0 is one (``layers_to_transform: 0`` names a layer), and equals False."""
    return value is not None and value is not False and value not in ("", [], {})


def _spec(config: dict[str, Any], folder: Path) -> AdapterSpec:
    used = [name for name in _UNSUPPORTED if _is_set(config.get(name))]
    used += [name for name in _VARIANTS if config.get(name) is not None and config[name] is not False]
    if config.get("bias", "none") != "none":
        used.append(f"bias={config['bias']}")
    if config.get("init_lora_weights", True) not in _BASE_UNCHANGED:
        used.append(f"init_lora_weights={config['init_lora_weights']}")
    if "invocation_string" in config and not config.get("alora_invocation_tokens"):
        raise AdapterError(
            f"{folder / CONFIG_FILE} has an invocation_string: it was made by the first aLoRA package, which activates "
            "one token later than PEFT does, so it would run as a wrong plain LoRA here; train the adapter again"
        )
    if used:
        raise AdapterError(f"{folder / CONFIG_FILE} uses {', '.join(used)}, which alora does not run; train it without")
    targets = config.get("target_modules")
    invocation = config.get("alora_invocation_tokens")
    try:
        if not targets:
            raise TypeError("target_modules must be a list of names")
        if invocation == []:  # PEFT would take it for a plain LoRA
            raise TypeError("alora_invocation_tokens must be a list of token ids")
        rank = decode(int, config["r"], "r")
        if rank < 1:
            raise TypeError("r must be a whole number of 1 or more")
        return AdapterSpec(
            rank=rank,
            alpha=decode(float, config["lora_alpha"], "lora_alpha"),
            targets=tuple(sorted(decode(tuple[str, ...], targets, "target_modules"))),
            invocation_ids=decode(tuple[int, ...] | None, invocation, "alora_invocation_tokens"),
            rank_stabilised=bool(decode(bool | None, config.get("use_rslora"), "use_rslora")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise AdapterError(f"{folder / CONFIG_FILE} is not a usable LoRA config: {error}") from error


def _pair(state: dict[str, torch.Tensor], folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in state.items():
        if tensor.dtype not in _DTYPES or not tensor.isfinite().all():
            found = f"of dtype {tensor.dtype}" if tensor.dtype not in _DTYPES else "with NaN or infinity in it"
            raise AdapterError(
                f"{folder / WEIGHTS_FILE} holds {key!r} {found}; a LoRA weight is finite and one of "
                f"{', '.join(str(dtype).removeprefix('torch.') for dtype in _DTYPES)}: export the adapter again"
            )
        for half in ("A", "B"):
            ending = f".lora_{half}.weight"
            if key.startswith(_KEY_PREFIX) and key.endswith(ending) and tensor.ndim == 2 and tensor.numel():
                halves.setdefault(key[len(_KEY_PREFIX) : -len(ending)], {})[half] = tensor
                break
        else:
            raise AdapterError(
                f"{folder / WEIGHTS_FILE} holds {key!r} of shape {tuple(tensor.shape)}, which is not a LoRA weight of "
                "a linear layer"
            )
    unpaired = [name for name, pair in halves.items() if len(pair) != 2]
    if unpaired or not halves:
        raise AdapterError(
            f"{folder / WEIGHTS_FILE} lacks the A or B of {unpaired[:3] or 'every module'}; it is incomplete"
        )
    return {name: (pair["A"], pair["B"]) for name, pair in sorted(halves.items())}
