"""Whether an adapter's weights are what its configuration says they are.

vLLM goes by the file: it runs whatever is there, of any rank. PEFT goes by the configuration, and refuses the rest or
leaves it out. An aLoRA whose two disagree would answer, and not as PEFT does.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from time import thread_time
from typing import Any

import regex
from safetensors import SafetensorError, safe_open

from alora.errors import AdapterError
from alora.vllm_plugin.adapter_config import AdapterConfig, read_json
from alora.weights import CONFIG, WEIGHTS

_KEY_PREFIX = "base_model.model."
_OF_THE_BASE = (".embed_tokens.base_layer.weight", ".lm_head.base_layer.weight")  # saved by PEFT, and skipped by vLLM
_LARGEST = 2.0**63  # of a module's scaled product: every layer's norm squares it, in float32
_PIECE, _MOST_TENSORS = 2**20, 2**16  # values at once; tensors of a file: a server's users wait while they are read
_MOST_KEYS = 400  # of patterns: the module regex, which vLLM calls, compiles more than 500 anew for each module
_MATCHING_S, _LONGEST = 2.0, 10_000  # of all names of an adapter, and of one: what was received may run for ever
# What regex writes out many times as it compiles, before any limit of time, or reads otherwise than PEFT's re.
_COSTLY = re.compile(r"\)[+{]|\{(?!\d{1,2}(?:,\d{0,2})?\})|\(\?(?!:|<?[=!]|P<)|\[:|\(\*")


class _Costly(ValueError):
    """What may take the engine's time or memory."""


Shapes = Mapping[str, tuple[int, ...]]


def require_sound(copy: str, shown: str, config: AdapterConfig) -> None:
    """AdapterError for weights that are no numbers, so that none of their answers is one.

    Also for weights of a head that the configuration does not name, and for an aLoRA that does not fit it: vLLM goes
    by the file, and would run them. It prefers this file to the pickles, which an aLoRA must not be: none is read here.
    """
    file = Path(copy, WEIGHTS)
    if config.is_alora and not file.is_file():
        raise AdapterError(f"{shown}: no {WEIGHTS} is there, the only weights of an aLoRA; save it with safetensors")
    if file.is_file():
        try:
            with safe_open(file, "pt") as tensors:
                _require_sound(tensors, copy, shown, config)
        except SafetensorError:
            return  # vLLM says what is wrong with it


def _require_sound(tensors: Any, copy: str, shown: str, config: AdapterConfig) -> None:
    names = list(tensors.keys())
    head = [name for name in names if ".lm_head." in f".{name}"]
    if head and not config.adapts_head:
        raise AdapterError(f"{shown}: {head[0]} is there, and target_modules of {CONFIG} does not name lm_head")
    scalings = dict[str, float]()
    if config.is_alora:  # by the shapes alone, before a value is read
        if len(names) > _MOST_TENSORS:
            raise AdapterError(f"{shown}: {WEIGHTS} has {len(names)} tensors, and {_MOST_TENSORS} are read")
        shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
        scalings = _fitting(shapes, read_json(copy, CONFIG), shown)
    norms = {name: _norm(tensors.get_tensor(name)) for name in names}
    if odd := [name for name, norm in norms.items() if not math.isfinite(norm)]:
        raise AdapterError(
            f"{shown}: {odd[0]} holds NaN or infinity, or no floating-point numbers; export the adapter again"
        )
    for module, scaling in scalings.items():
        a, b = (norms[f"{_KEY_PREFIX}{module}.lora_{half}.weight"] for half in "AB")
        if abs(scaling) * a * b > _LARGEST:
            raise AdapterError(
                f"{shown}: lora_alpha of {CONFIG} makes the product of {module} larger than float32 can compute with; "
                "export the adapter again"
            )


def _norm(tensor: Any) -> float:
    """Not finite where a value is not; by pieces, since float64 takes eight times the memory of eight bits."""
    if not tensor.is_floating_point():
        return math.nan
    try:
        if tensor.numel() <= _PIECE:
            return float(tensor.float().double().norm())
        return math.sqrt(sum(float(part.float().double().square().sum()) for part in tensor.flatten().split(_PIECE)))
    except NotImplementedError:  # four bits, packed
        return math.nan


class _Matching:
    """The time that an adapter's names and patterns have together, in the engine, where every user waits. vLLM runs the
    patterns by the same module after that."""

    def __init__(self) -> None:
        self._until, self._compiled = thread_time() + _MATCHING_S, dict[tuple[str, str], Any]()

    def left(self, name: str) -> float:
        """Seconds that ``name``, or a pattern, may take; TimeoutError for none, _Costly for one that is too long."""
        if len(name) > _LONGEST:
            raise _Costly(f"a name or pattern of {len(name)} characters, where {_LONGEST} are read")
        if (left := self._until - thread_time()) <= 0:
            raise TimeoutError
        return left

    def match(self, form: str, pattern: str, module: str) -> Any:
        """Where ``pattern`` as part of ``form`` matches the beginning of ``module``; _Costly for one that may take any
        memory to compile."""
        left = self.left(pattern)
        if (form, pattern) not in self._compiled:
            if costly := _COSTLY.search(re.sub(r"\\.", "_", pattern, flags=re.DOTALL)):
                raise _Costly(f"a pattern with {costly[0]!r}, where plain groups, sets and counts up to 99 are read")
            for whole in (pattern, form.format(pattern)):
                re.compile(whole)  # PEFT's
            self._compiled[form, pattern] = regex.compile(form.format(pattern))
        return self._compiled[form, pattern].match(module, timeout=left)


def _fitting(shapes: Shapes, config: dict[str, Any], shown: str) -> dict[str, float]:
    """The scaling of each module; AdapterError where weights of these shapes are not what ``config`` says."""
    try:
        matching, scalings = _Matching(), dict[str, float]()
        keys = {*(config.get("rank_pattern") or ()), *(config.get("alpha_pattern") or ())}
        if len(keys) > _MOST_KEYS:
            raise _Costly(f"{len(keys)} keys in rank_pattern and alpha_pattern, where {_MOST_KEYS} are read")
        named = _target_matcher(config, matching)
        for module, pair in _pairs(shapes).items():
            matching.left(module)
            if not named(module):
                raise ValueError(f"target_modules does not name {module}")
            scalings[module] = _scaling(module, pair, config, matching)
        return scalings
    except TimeoutError as error:
        raise AdapterError(
            f"{shown}: the names and patterns of {CONFIG} do not match within {_MATCHING_S:g} s, in which all requests "
            "wait; name the modules by fewer or simpler ones"
        ) from error
    except _Costly as error:
        raise AdapterError(
            f"{shown} has {error}: all requests might wait for it; use fewer, shorter or simpler ones"
        ) from error
    except (
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
        MemoryError,
        re.error,
        regex.error,
    ) as error:
        raise AdapterError(
            f"{shown}: {CONFIG} and weights do not fit: {error}; PEFT and vLLM would not answer alike, so export the "
            "adapter again, with A and B of linear layers alone"
        ) from error


def _pairs(shapes: Shapes) -> dict[str, dict[str, tuple[int, ...]]]:
    """A and B by module; ValueError for other kinds of tensor, which vLLM does not serve with an aLoRA."""
    pairs: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, shape in shapes.items():
        if name.endswith(_OF_THE_BASE):
            continue
        # vLLM takes names without the prefix, too, and drops it everywhere; PEFT leaves such weights out.
        if not name.startswith(_KEY_PREFIX) or name.count(_KEY_PREFIX) != 1:
            raise ValueError(f"{name} does not begin with {_KEY_PREFIX!r}, or has it more than once")
        module, _, kind = name.removesuffix(".weight").removeprefix(_KEY_PREFIX).rpartition(".lora_")
        # vLLM matches patterns to another name of a mixture's own weights, which PEFT's aLoRA has none of.
        fused = f".{module}".endswith((".experts", ".experts.base_layer"))
        if not module or fused or kind not in ("A", "B") or not name.endswith(".weight") or len(shape) != 2:
            raise ValueError(f"{name} of shape {shape} is not a LoRA weight of a linear layer")
        pairs[module][kind] = shape
    if alone := next((module for module, pair in pairs.items() if len(pair) != 2), None):
        raise ValueError(f"{alone} has no A or no B")
    return pairs


def _target_matcher(config: dict[str, Any], matching: _Matching) -> Callable[[str], bool]:
    """Whether PEFT adapts a module of this path, as ``peft.tuners.tuners_utils.check_target_module_exists``."""
    targets, excluded = config.get("target_modules") or [], _named(config.get("exclude_modules"), matching)
    # all-linear: all but the head, whose weights are judged by name
    named = (lambda module: True) if targets == "all-linear" else _named(targets, matching)
    layers = config.get("layers_to_transform")
    layers = {layers} if type(layers) is int else {*(layers or ())}
    if not layers or isinstance(targets, str):
        return lambda module: named(module) and not excluded(module)
    whole = {*map(str, targets)}

    def in_layers(module: str) -> bool:
        of_layers = config.get("layers_pattern") or ()
        form = r"(?:^|.*?\.){}\.(?P<idx>\d+)\." if of_layers else r".*?\.{}\.(?P<idx>\d+)\."
        for pattern in ([of_layers] if isinstance(of_layers, str) else of_layers) or [r"[^.]*"]:
            if found := matching.match(form, pattern, module):
                return found["idx"] is not None and int(found["idx"]) in layers
        return False

    return lambda module: (module in whole or (named(module) and in_layers(module))) and not excluded(module)


def _named(modules: Any, matching: _Matching) -> Callable[[str], bool]:
    """Whether ``modules``, names or a pattern, name a module of this path."""
    if isinstance(modules, str):
        return lambda module: matching.match(r"(?:{})\Z", modules, module) is not None
    names = {*map(str, modules or ())}

    def ends_with_name(module: str) -> bool:
        parts = module.split(".")
        return any(".".join(parts[index:]) in names for index in range(len(parts)))

    return ends_with_name


def _scaling(module: str, pair: dict[str, tuple[int, ...]], config: dict[str, Any], matching: _Matching) -> float:
    rank = _by_pattern(config.get("rank_pattern"), module, config.get("r"), matching)
    alpha = _by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha"), matching)
    if type(rank) is not int or rank < 1 or type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise ValueError(f"r is {rank!r} and lora_alpha {alpha!r} for {module}, not a rank and a finite number")
    if (pair["A"][0], pair["B"][1]) != (rank, rank):
        raise ValueError(f"{module} has A {pair['A']} and B {pair['B']}, and the rank is {rank}")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _by_pattern(by_key: dict[str, Any] | None, module: str, default: Any, matching: _Matching) -> Any:
    """As ``peft.utils.other.get_pattern_key``: the first key that matches the end of the module's path."""
    for key, value in (by_key or {}).items():
        if matching.match(r"(.*\.)?({})$", key, module):
            return value
    return default
