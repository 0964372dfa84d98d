"""One training over several processes: how conversations are assigned, and what is reduced or broadcast.

``torchrun`` or ``accelerate launch`` starts them; each has the whole data and the whole bank. A step's conversations
are shared out, every process computes the gradient of its share, weighted by the whole step's counts, and the shares
are added once before the optimiser moves. So the step equals that of a single process, for any number of
processes and however uneven the shares: a policy may have all its rows on one process, and a process may have more
passes than another, or none. (DistributedDataParallel reduces in every backward, so it needs the same number of them on
every process.)

The first process makes a decision that all must share and broadcasts it, or it follows from reduced values.

A frozen base may lie in parts, each process with a share of every layer (FSDP2, ``fully_shard``), whose weights are
gathered when its forward or backward needs them and dropped after it. The embedding, the final norm and the head stay
whole: label logits read single rows of the head. Adapters stay whole too.
"""

import atexit
import os
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from accelerate import PartialState
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from alora.base.load import LoadedBase, choose_device, choose_dtype, load_base
from alora.config.schema import BaseSettings, Recipe
from alora.errors import BaseError, RunError

_BACKWARD = 3  # a suffix token, forward and backward, costs as much as this many prefix tokens
_LINGER = 2.0  # seconds for the first that failed to say why, before the launcher ends all


@contextmanager
def _meeting() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo and nccl have no error class of their own for it
        raise RunError(
            f"another process of this training is gone ({' '.join(str(error).split())[:120]}); the same command goes "
            "on from the last checkpoint"
        ) from error


@dataclass(frozen=True)
class Processes:
    """This process among those of one training."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """The first process's ``value``, on every process."""
        if self.count == 1:
            return value
        values = [value if self.first else None]
        with _meeting():
            distributed.broadcast_object_list(values, src=0)
        return values[0]

    def wait(self) -> None:
        """Block until every process has arrived."""
        if self.count > 1:
            with _meeting():
                distributed.barrier()

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace each tensor by its sum over the processes; the same bits on each of them."""
        if self.count > 1:
            with _meeting():
                for tensor in tensors:
                    distributed.all_reduce(tensor)

    def any(self, flags: Sequence[bool], device: torch.device) -> list[bool]:
        """Each flag that is set on any process."""
        if self.count == 1:
            return list(flags)
        return [bool(flag) for flag in self._largest([int(flag) for flag in flags], device)]

    def most(self, number: int, device: torch.device) -> int:
        """The largest ``number`` of any process."""
        if self.count == 1:
            return number
        return self._largest([number], device)[0]

    def _largest(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        largest = torch.tensor(numbers, device=device)
        with _meeting():
            distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        return largest.tolist()


ALONE = Processes()
_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# What accelerate may be asked for, its configuration included, and a training here does not do.
_NOT_DONE = ("USE_FSDP", "USE_DEEPSPEED", "USE_MEGATRON_LM", "MIXED_PRECISION", "DYNAMO_BACKEND")


def require_launch() -> None:
    """RunError where the environment asks for what would fail, or train something else than the recipe says."""
    for name in (f"ACCELERATE_{name}" for name in _NOT_DONE):
        if (asked := os.environ.get(name, "")).lower() not in ("", "no", "false", "0"):
            raise RunError(
                f"accelerate was asked for {name}={asked}, which no training here does; launch without it "
                "(--mixed_precision=no): training.shard_base=true splits a base, base.dtype is what it computes in"
            )
    missing = [name for name in _LAUNCHED if name not in os.environ]
    for name, alone in (("WORLD_SIZE", "1"), ("LOCAL_RANK", "-1")):
        if missing and os.environ.get(name, alone) != alone:
            raise RunError(
                f"{name} is in the environment without {', '.join(missing)}, which a launcher sets with it; unset it, "
                "or start by torchrun or accelerate launch"
            )


def join_processes(device: str = "auto") -> Processes:
    """Meet the processes that a launcher started with this one; :data:`ALONE` without a launcher. On GPUs each process
    takes the one of its local rank; ``device`` is ``base.device``."""
    require_launch()
    if os.environ.get("WORLD_SIZE", "1") == "1" or "RANK" not in os.environ:
        return ALONE
    if device not in ("auto", "cpu", "cuda"):
        raise RunError(f"base.device={device} is one device for several processes; use auto, cpu or cuda")
    # accelerate chooses the backend (gloo, nccl) and the device, here as later in the trainer.
    state = PartialState(cpu=device == "cpu" or not torch.cuda.is_available())
    atexit.register(state.destroy_process_group)
    return Processes(state.process_index, state.num_processes)


def current_processes() -> Processes:
    """The processes that have met, or :data:`ALONE`."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return ALONE
    return Processes(distributed.get_rank(), distributed.get_world_size())


def first_to_fail() -> bool:
    """Whether this process is the one to say why all of them end. The others wait for a moment, because a launcher ends
    all processes once one has ended."""
    try:
        store = distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage] public by its documentation
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=_LINGER),
        )
        first = store.add(f"alora/failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", 1) == 1
    except (KeyError, ValueError, RuntimeError):  # no launcher's store, or the process that kept it is gone
        first = os.environ.get("RANK", "0") == "0"
    if not first:
        time.sleep(_LINGER)
    return first


def home(prefix_ids: Sequence[int], count: int) -> int:
    """The process, of ``count``, that keeps a prefix's KV."""
    return zlib.crc32(array("q", prefix_ids).tobytes()) % count  # not hash(): the same in every process


def share_out(prefixes: Sequence[tuple[int, ...]], suffix_tokens: Sequence[int], count: int, kept: bool) -> list[int]:
    """The process that each conversation of a step belongs to, the same answer on every process.

    Greedy: the heaviest conversation first, each to the process whose load would then be least. With prefix KV
    ``kept`` across epochs, a hash of its ids gives each conversation a home process, where its prefix costs nothing.

    Args:
        prefixes: ids of each conversation's prefix.
        suffix_tokens: tokens of each conversation's suffixes together.
        count: number of processes.
    """
    homes = [home(ids, count) for ids in prefixes]
    own = [_BACKWARD * tokens for tokens in suffix_tokens]
    load, owners = [0] * count, [0] * len(prefixes)
    # Ties by index and by rank, so that all processes find the same owners without a word.
    for index in sorted(range(len(prefixes)), key=lambda index: (-own[index] - len(prefixes[index]), index)):
        costs = [own[index] + (0 if kept and rank == homes[index] else len(prefixes[index])) for rank in range(count)]
        rank = min(range(count), key=lambda rank: (load[rank] + costs[rank], rank))
        owners[index], load[rank] = rank, load[rank] + costs[rank]
    return owners


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
