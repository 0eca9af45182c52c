"""CLIP's tokenizer, built from the merges we ship or from a model's own folder, and checked either way.

Owns the vocabulary. It must never let a tokenizer through that maps captions to other ids than CLIP's:
without its files, transformers builds one of two tokens and says nothing.
"""

import gzip
import json
import tempfile
from functools import cache
from pathlib import Path

from transformers import CLIPTokenizer

from autotune.errors import ModelError
from trainer.families.architecture import ASSETS

VOCABULARY_SIZE = 49408
MAX_LENGTH = 77
END = "<|endoftext|>"
ZERO = "!"  # id 0: SDXL's second tokenizer pads with it

_START = "<|startoftext|>"
_MERGES = VOCABULARY_SIZE - 2 * 256 - 2
_VOCABULARY_FILES = ("tokenizer.json", "vocab.json")


@cache
def clip_tokenizer(pad_token: str = END) -> CLIPTokenizer:
    """CLIP's tokenizer from the shipped merges, padding with `pad_token` (`END`, or `ZERO` for SDXL's
    second)."""
    with tempfile.TemporaryDirectory() as name:
        write_tokenizer(Path(name), pad_token)
        return _checked(CLIPTokenizer.from_pretrained(name, local_files_only=True), Path(name))


def load_tokenizer(folder: Path, pad_token: str = END) -> CLIPTokenizer:
    """The tokenizer in `folder`, or the shipped one if the folder holds no vocabulary.

    Raises ModelError unless it has CLIP's 49,408 tokens and length 77.
    """
    if not any((folder / name).exists() for name in _VOCABULARY_FILES):
        return clip_tokenizer(pad_token)
    try:
        tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"the tokenizer in {folder} can't be read: {error}.", _way_out(folder)) from None
    return _checked(tokenizer, folder)


def clip_tokenizer_of(folder: Path | None, name: str, pad_token: str = END) -> CLIPTokenizer:
    """The tokenizer `name` of the diffusers `folder`, or the shipped one without a folder."""
    return clip_tokenizer(pad_token) if folder is None else load_tokenizer(folder / name, pad_token)


def write_tokenizer(folder: Path, pad_token: str = END) -> None:
    """Write the shipped tokenizer's files into `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": MAX_LENGTH,
        "bos_token": _START,
        "eos_token": END,
        "unk_token": END,
        "pad_token": pad_token,
    }
    vocabulary, merges = _vocabulary()
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    (folder / "merges.txt").write_text("\n".join(("#version: 0.2", *merges, "")), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), "utf-8")


def _checked(tokenizer: CLIPTokenizer, folder: Path) -> CLIPTokenizer:
    found = (tokenizer.vocab_size, tokenizer.model_max_length)
    if found != (VOCABULARY_SIZE, MAX_LENGTH):
        raise ModelError(
            f"the tokenizer in {folder} has {found[0]:,} tokens and length {found[1]:,}; CLIP has "
            f"{VOCABULARY_SIZE:,} and {MAX_LENGTH}.",
            _way_out(folder),
        )
    return tokenizer


def _way_out(folder: Path) -> str:
    return f"Download {folder.name} again; without that folder the tokenizer shipped with us is used."


@cache
def _vocabulary() -> tuple[dict[str, int], tuple[str, ...]]:
    """Ids by token and the merges in order: bytes, bytes that end a word, merges, then the two marks."""
    with gzip.open(ASSETS / "bpe_simple_vocab_16e6.txt.gz", "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")
    merges = tuple(lines[1 : _MERGES + 1])  # the first line is a version
    letters = _byte_letters()
    tokens = [*letters, *(f"{c}</w>" for c in letters), *("".join(m.split()) for m in merges), _START, END]
    return {token: number for number, token in enumerate(tokens)}, merges


def _byte_letters() -> list[str]:
    """A printable letter for each of the 256 bytes, in CLIP's order: those that print as themselves come
    first."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = 256 - len(plain)
    return [chr(code) for code in plain] + [chr(256 + extra) for extra in range(others)]
