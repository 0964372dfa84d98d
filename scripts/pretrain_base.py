"""Pre-train a base from a text corpus and save it as an ordinary Qwen3 folder.

    python scripts/pretrain_base.py --corpus corpus.txt.gz --out bases/mine --layers 6 --hidden 384 --minutes 30

The corpus is UTF-8 text, plain or gzipped, with a line ``<|endoftext|>`` between documents. ``--summaries N`` makes a
base for classifiers: N questions and answers, computed from the text, follow each document.
"""

import argparse
import gzip
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from alora.base.lessons import LessonWriter, study
from alora.base.pretrain import END_OF_DOCUMENT, Architecture, pretrain, save_base, train_tokenizer
from alora.base.summaries import summarise
from alora.errors import AloraError, BaseError


def read_documents(path: Path) -> list[str]:
    """The documents of a corpus file, without the separator lines.

    Raises:
        BaseError: the file cannot be read, or is not UTF-8.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BaseError(f"{path}: cannot read the corpus: {error}") from error
    pieces = f"\n{text}\n".split(f"\n{END_OF_DOCUMENT}\n")
    return [piece.strip("\n") for piece in pieces if piece.strip()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, help="default: hidden / 64")
    parser.add_argument("--kv-heads", type=int, help="default: heads / 2")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--intermediate", type=int, help="default: 3 x hidden")
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--max-positions", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--minutes", type=float, help="stop after this long, with the schedule fitted to it")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--summaries", type=int, default=0, help="exchanges about each document; 0: the text alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--save-every", type=int, default=0, help="steps between snapshots OUT-stepN; 0: none")
    return parser.parse_args()


def architecture(args: argparse.Namespace) -> Architecture:
    heads = args.heads or max(1, args.hidden // args.head_dim)
    return Architecture(
        layers=args.layers,
        hidden=args.hidden,
        heads=heads,
        kv_heads=args.kv_heads or max(1, heads // 2),
        head_dim=args.head_dim,
        intermediate=args.intermediate or 3 * args.hidden,
        vocab=args.vocab,
        max_positions=args.max_positions,
    )


def train(
    documents: list[str],
    tokenizer: PreTrainedTokenizerFast,
    args: argparse.Namespace,
    snapshot: Callable[[int, Qwen3ForCausalLM], None],
) -> Qwen3ForCausalLM:
    """A base trained on the text alone, or with ``--summaries`` on lessons."""
    shared = {
        "steps": args.steps,
        "learning_rate": args.learning_rate,
        "seed": args.seed,
        "threads": args.threads,
        "time_limit_s": None if args.minutes is None else 60 * args.minutes,
    }
    if args.summaries:
        writer = LessonWriter(tokenizer, args.sequence_length)
        lessons = [writer.write(document) for document in summarise(documents, args.summaries, args.seed)]
        batch_tokens = args.batch_size * args.sequence_length
        return study(lessons, tokenizer, architecture(args), batch_tokens=batch_tokens, **shared)
    return pretrain(
        documents,
        tokenizer,
        architecture(args),
        batch_size=args.batch_size,
        sequence_length=args.sequence_length,
        checkpoint=snapshot,
        checkpoint_every=args.save_every,
        **shared,
    )


def main() -> None:
    args = arguments()

    def snapshot(step: int, model: Qwen3ForCausalLM) -> None:
        save_base(model, tokenizer, Path(f"{args.out}-step{step}"))

    try:
        if args.out.exists():
            raise BaseError(f"{args.out} exists already; choose another folder or remove it")
        documents = read_documents(args.corpus)
        print(f"{len(documents)} documents; training the tokenizer")
        tokenizer = train_tokenizer(documents, args.vocab)
        model = train(documents, tokenizer, args, snapshot)
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {save_base(model, tokenizer, args.out)}")
    except AloraError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
