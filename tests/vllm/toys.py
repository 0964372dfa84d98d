"""The models, adapters and prompts of these tests, built once per process."""

import atexit
import functools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.vllm.peft_reference import PeftReference
from tests.vllm.toy_engine import ToyEngine
from tests.vllm.toy_models import ALL_LINEAR, ATTENTION, ToyAdapter, write_adapter, write_model

INVOCATION = (2, 2, 32)  # "##A": overlaps with itself, and its parts occur alone
OTHER_INVOCATION = (4, 5)  # "%&"
_FILLER = (60, 250)  # ids that no invocation uses


@dataclass(frozen=True)
class Toys:
    """A base folder and its adapters by name."""

    base: str
    adapters: dict[str, ToyAdapter]

    def __getitem__(self, name: str) -> ToyAdapter:
        return self.adapters[name]


@functools.cache
def folder() -> Path:
    """A scratch folder that lives as long as the process."""
    path = Path(tempfile.mkdtemp(prefix="alora-vllm-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def toys(family: str) -> Toys:
    """aLoRA adapters of three ranks over attention or all linear layers, and two plain LoRA adapters."""
    home = folder() / family
    base = write_model(home / "base", family)
    plans = {
        "attention": (INVOCATION, 4, ATTENTION),
        "linear": (INVOCATION, 8, ALL_LINEAR),
        "wide": (INVOCATION, 16, ALL_LINEAR),
        "other": (OTHER_INVOCATION, 8, ALL_LINEAR),
        "plain": ((), 8, ALL_LINEAR),
        "plain2": ((), 8, ALL_LINEAR),
    }
    adapters = {}
    for number, (name, (invocation, rank, targets)) in enumerate(plans.items(), start=1):
        path = write_adapter(home / name, base, invocation, seed=number, rank=rank, targets=targets)
        adapters[name] = ToyAdapter(name, number, path, invocation)
    return Toys(base, adapters)


@functools.cache
def reference(family: str) -> PeftReference:
    found = toys(family)
    return PeftReference(found.base, list(found.adapters.values()))


@functools.cache
def engine(family: str) -> ToyEngine:
    """The engine that most tests share."""
    return ToyEngine(toys(family).base)


def filler(count: int, seed: int = 0) -> list[int]:
    """Random ids without any invocation token."""
    return torch.randint(*_FILLER, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def prompt(activation: int, suffix: int = 6, seed: int = 0, invocation: tuple[int, ...] = INVOCATION) -> list[int]:
    """A prompt whose invocation starts at ``activation``, with ``suffix`` tokens after it."""
    return filler(activation, seed) + list(invocation) + filler(suffix, seed + 1000)
