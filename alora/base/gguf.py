"""A GGUF file as a base: converted once into an ordinary model folder in the user's cache.

GGUF holds config, tokenizer, chat template and (usually quantized) weights in one file. transformers dequantizes it to
float32 while it loads, which takes half a minute for 135 M parameters, so the result is kept: as a folder that
transformers, PEFT and vLLM load like any other. The folder is a dequantized copy, so its fingerprint differs from that
of the full-precision weights behind the file.
"""

from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError

from alora.atomic import flush
from alora.base.cache import cache_root, remember_of, working_folder
from alora.errors import BaseError, MissingDependency, first_line
from alora.text import sha256_of

_FORMAT = 1  # raise it when the conversion writes something else: a new number is a new folder in the cache


def converted(file: Path, digest: str | None = None) -> Path:
    """The folder of the base in ``file``, whose sha256 is ``digest`` if it is known; converts it first if it is not in
    the cache. Of several processes one converts and the others wait."""
    digest = digest or file_digest(file)
    folder = converted_folder(digest)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock"):
            if not folder.is_dir():
                _convert(file, folder)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BaseError(
            f"the base cannot be written to {folder}: {reason}; make room, or set ALORA_CACHE to a folder of yours"
        ) from error
    return folder


def converted_folder(digest: str) -> Path:
    """Where the base of the file with this sha256 lies, whether or not it has been converted."""
    return cache_root() / "bases" / f"gguf-{digest[:16]}-{_FORMAT}"


def file_digest(file: Path) -> str:
    """sha256 of ``file``, remembered in the user's cache by path, size and time."""
    try:
        return remember_of([file], ".gguf.txt", lambda: sha256_of(file))
    except OSError as error:
        raise BaseError(f"{file} cannot be read: {error.strerror or error}; check base.source") from error


def _convert(file: Path, folder: Path) -> None:
    with working_folder(folder.parent / f".{folder.name}") as staged:
        base = staged / "base"
        try:
            write_model(file, base)
        except (SafetensorError, BaseError):
            raise
        except ImportError as error:
            raise MissingDependency(
                f"{file.name} is converted by torch, gguf and transformers ({error}); install them, or name a folder "
                "that was converted elsewhere as the base"
            ) from error
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's; transformers raises OSError of its own for what it cannot read
            raise BaseError(
                f"{file} cannot be read as a GGUF base: {first_line(error)}; check that the file is whole, and of a "
                "family whose GGUF files transformers reads"
            ) from error
        for path in (*base.iterdir(), base):
            flush(path)
        base.replace(folder)


def write_model(file: Path, folder: Path) -> None:
    """Write the model and the tokenizer in ``file`` to the folder ``folder``, in float32: complete, or not at all."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # torch: clients of a server go without

    from alora.base.config import quiet, require_whole

    # Alone in a folder: transformers also reads what lies next to the file, Python included, and the cache's key is the
    # file's digest.
    alone = folder.parent / "alone"
    alone.mkdir()
    (alone / file.name).symlink_to(file.absolute())
    stored: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    with quiet():  # a bar over the tensors that are dequantized is tqdm's own, and stays
        tokenizer = AutoTokenizer.from_pretrained(alone, **stored)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            alone, dtype="float32", output_loading_info=True, ignore_mismatched_sizes=True, **stored
        )
    model, info = loaded
    require_whole(info, str(file))
    # The weights are plain float32 by now; the model still says that it is quantized and would refuse to be saved.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
