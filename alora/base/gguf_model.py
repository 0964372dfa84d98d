"""A GGUF file's model and tokenizer, written as an ordinary model folder: complete, or not at all."""

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from alora.base.config import quiet, require_whole


def write_model(file: Path, folder: Path) -> None:
    """Write the model and the tokenizer in ``file`` to the folder ``folder``, in float32."""
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
