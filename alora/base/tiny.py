"""The tiny offline base: a Qwen3 of about three million parameters, pre-trained here in about a minute.

It exists so that the whole story (train, prove, export, score) runs on any machine without a model hub. It knows
nothing but the small world of :mod:`alora.base.tiny_corpus`; it is no base for real conversations.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock

from alora.base.cache import cache_root
from alora.base.pretrain import Architecture, pretrain, save_base, train_tokenizer
from alora.base.tiny_corpus import documents
from alora.errors import BaseError

# Raise it whenever the corpus or the training changes what comes out: a new number is a new folder in the cache.
RECIPE_VERSION = 1


@dataclass(frozen=True)
class TinyRecipe:
    """Everything that decides the tiny base's weights, apart from the corpus's grammar."""

    version: int = RECIPE_VERSION
    architecture: Architecture = field(default_factory=Architecture)
    documents: int = 4000
    steps: int = 270
    batch_size: int = 2
    sequence_length: int = 640
    learning_rate: float = 2.5e-3
    answer_weight: float = 30.0
    text_share: float = 0.25
    seed: int = 0

    def digest(self) -> str:
        """Short digest of every setting, the version included."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


RECIPE = TinyRecipe()


def build_tiny_base(folder: Path, progress: bool = True, recipe: TinyRecipe = RECIPE) -> Path:
    """Train the tiny base and write it to ``folder``, which must not exist yet.

    Raises:
        BaseError: ``folder`` exists already, or cannot be written.
    """
    if folder.exists():
        raise BaseError(f"{folder} exists already; choose another folder or remove it")
    corpus = documents(recipe.documents, recipe.seed)
    tokenizer = train_tokenizer(corpus, recipe.architecture.vocab)
    model = pretrain(
        corpus,
        tokenizer,
        recipe.architecture,
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        sequence_length=recipe.sequence_length,
        learning_rate=recipe.learning_rate,
        answer_weight=recipe.answer_weight,
        text_share=recipe.text_share,
        seed=recipe.seed,
        progress=progress,
    )
    return save_base(model, tokenizer, folder)


def tiny_base_folder(recipe: TinyRecipe = RECIPE) -> Path:
    """Where the tiny base lies in the user's cache, whether or not it has been built."""
    return cache_root() / "bases" / f"tiny-{recipe.digest()}"


def ensure_tiny_base(progress: bool = True, recipe: TinyRecipe = RECIPE) -> Path:
    """The tiny base's folder; builds it first if it is missing. Of several processes, one builds and all wait.

    Raises:
        BaseError: the cache cannot be written.
    """
    folder = tiny_base_folder(recipe)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock"):
            return folder if folder.is_dir() else build_tiny_base(folder, progress, recipe)
    except OSError as error:
        raise BaseError(
            f"the tiny base cannot be built in {folder}: {error}; set ALORA_CACHE to a writable folder"
        ) from error
