"""The spellings of values. Owns turning what people write ("512x768", "1e-4", 2.0, `no`) into typed settings,
by canonical key; never knows which file or dialect a value comes from.
"""

import math
import re
import reprlib
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, cast, get_args

from trainer.config.schema import Size, TrainConfig


class Unset(Enum):
    """The value says "not set": the default, or an earlier file, counts."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


class SpellingFault(ValueError):  # noqa: N818 - becomes a ConfigError at the border
    """A value that can't be read: `reason` goes after `key = value`, `way_out` is the sentence that helps."""

    def __init__(self, reason: str, way_out: str = "") -> None:
        self.reason = reason
        self.way_out = way_out
        super().__init__(reason)


def parse_value(key: str, raw: object) -> object:
    """The typed value of canonical `key`, None for "off", or UNSET. Raises SpellingFault.

    "" and null mean unset; so does 0 where a zero can't be meant (epochs, steps, VAE batch), while 0 turns
    periodic saving and sampling, the SNR weight and clip skip off.
    """
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return UNSET
    parser = _SPECIAL.get(key) or _BY_TYPE[kind_of(key)]
    value = parser(raw)
    if not isinstance(value, bool) and value == 0 and key in ZERO_IS_OFF:
        return None
    if not isinstance(value, bool) and value == 0 and key in ZERO_IS_UNSET:
        return UNSET
    return value


ZERO_IS_OFF = frozenset(
    (
        "save_every_n_epochs",
        "save_every_n_steps",
        "sample_every_n_epochs",
        "sample_every_n_steps",
        "min_snr_gamma",
        "clip_skip",
    )
)
ZERO_IS_UNSET = frozenset(("max_train_epochs", "max_train_steps", "vae_batch_size"))


@cache
def kind_of(key: str) -> type:
    """bool, int, float or str: the plain type of a TrainConfig field, None left out."""
    pending: list[Any] = [TrainConfig.model_fields[key].annotation]
    while pending:
        annotation = pending.pop()
        if annotation in (bool, int, float, str):
            return cast("type", annotation)
        pending += [part for part in get_args(annotation)[:1] if part is not None]
    return str


def parse_bool(raw: object) -> bool:
    """True or False from a bool, 0 or 1, or true/false, yes/no, on/off in any case."""
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower() if isinstance(raw, str | int | float) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise SpellingFault("is neither true nor false.", "Write true or false.")


def is_true(raw: object) -> bool:
    """Whether the value says yes; what is neither yes nor no does not."""
    try:
        return parse_bool(raw)
    except SpellingFault:
        return False


_TRUE = frozenset(("true", "yes", "on", "1", "1.0"))
_FALSE = frozenset(("false", "no", "off", "0", "0.0", "none"))


def parse_float(raw: object) -> float:
    """A finite number from a number or its text ("1e-4")."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise SpellingFault("is not a number.")
    try:
        value = float(raw)
    except OverflowError:
        value = math.inf
    except ValueError:
        comma = isinstance(raw, str) and re.fullmatch(r"\s*\d+,\d+(e-?\d+)?\s*", raw)
        advice = "Write the decimal point as a dot." if comma else "Write a number such as 1e-4."
        raise SpellingFault("is not a number.", advice) from None
    if not math.isfinite(value):
        raise SpellingFault("is not a finite number.")
    return value


def parse_int(raw: object) -> int:
    """A whole number from an integer, a float without fraction (2.0) or their text."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        value = raw
    elif isinstance(raw, str) and re.fullmatch(r"\s*[-+]?\d{1,30}\s*", raw):
        value = int(raw)
    else:
        number = parse_float(raw)
        if not number.is_integer():
            raise SpellingFault("is not a whole number.")
        value = int(number)
    if abs(value) >= 2**63:
        raise SpellingFault("is too large.")
    return value


def parse_text(raw: object) -> str:
    """Text on one line; numbers become their text. Refuses control characters: eaten backslashes."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise SpellingFault("is not text.", "Put it in quotes.")
    text = str(raw)
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]|[\n\t]\S", text):
        raise SpellingFault(
            "holds a control character: its backslashes were read as escapes.",
            "Write the path with /, or in TOML in 'single quotes'.",
        )
    return text.strip()


def parse_resolution(raw: object) -> tuple[Size, ...]:
    """One or more (width, height) in pixels.

    A size is 512, "512", "512,768", "512x768" or [512, 768]; two numbers are always width and height.
    Several sizes are "512,512;768,768" or a list of sizes, each a pair.
    """
    if isinstance(raw, str) and ";" in raw:
        sizes = [_size(part) for part in raw.split(";") if part.strip()]
    elif isinstance(raw, list | tuple) and raw and all(_is_size(part) for part in raw):
        sizes = [_size(part) for part in raw]
    else:
        sizes = [_size(raw)]
    return tuple(dict.fromkeys(sizes))


def _is_size(raw: object) -> bool:
    return isinstance(raw, list | tuple) or (isinstance(raw, str) and len(_numbers(raw)) == 2)


def _size(raw: object) -> Size:
    try:
        numbers = [parse_int(part) for part in _numbers(raw)]
    except SpellingFault:
        raise SpellingFault(_SIZE_FAULT, _SIZE_ADVICE) from None
    if len(numbers) not in (1, 2):
        raise SpellingFault(_SIZE_FAULT, _SIZE_ADVICE)
    if min(numbers) < 8 or max(numbers) > 16384:
        raise SpellingFault("has a side outside 8 to 16384 pixels.", _SIZE_ADVICE)
    return numbers[0], numbers[-1]


def _numbers(raw: object) -> list[object]:
    if isinstance(raw, str):
        text = raw.strip().strip("()[]").strip()
        return list(re.split(r"\s*[,xX×*]\s*|\s+", text))
    if isinstance(raw, list | tuple):
        return list(raw)
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise SpellingFault(_SIZE_FAULT, _SIZE_ADVICE)
    return [raw]


_SIZE_FAULT = "is no resolution."
_SIZE_ADVICE = 'Write 512, "512,768" (width,height), or "512,512;768,768" for several.'


def parse_precision(raw: object) -> str:
    """mixed_precision: no, fp16 or bf16 (YAML turns `no` into False)."""
    if raw is False:
        return "no"
    return _choice(raw, _PRECISIONS, ("no", "fp16", "bf16"))


def parse_save_precision(raw: object) -> str:
    """save_precision: float, fp16 or bf16."""
    return _choice(raw, _PRECISIONS | {"no": "float"}, ("float", "fp16", "bf16"))


_PRECISIONS: dict[str, str] = {
    **dict.fromkeys(("no", "none", "false", "off", "fp32", "float32", "float"), "no"),
    **dict.fromkeys(("fp16", "float16", "half", "16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
}


def parse_scheduler(raw: object) -> str:
    """The name of a learning-rate schedule that the trainer has."""
    return _choice(raw, {}, get_args(TrainConfig.model_fields["lr_scheduler"].annotation))


def parse_optimizer(raw: object) -> str:
    """The name of an optimizer that the trainer has, in any case."""
    names: tuple[str, ...] = get_args(TrainConfig.model_fields["optimizer_type"].annotation)
    return _choice(raw, {name.lower(): name for name in names}, names)


def _choice(raw: object, spellings: Mapping[str, str], names: tuple[str, ...]) -> str:
    word = str(raw).strip().lower() if isinstance(raw, str | int | float) else ""
    value = spellings.get(word, word)
    value = spellings.get(value, value) if value not in names else value
    if value in names:
        return value
    raise SpellingFault("is not one that this version has.", f"Choose {', '.join(names[:-1])} or {names[-1]}.")


def parse_format(raw: object) -> str:
    """save_model_as: only safetensors."""
    return _choice(raw, {}, ("safetensors",))


def parse_betas(raw: object) -> tuple[float, float]:
    """Two numbers in [0, 1) from "0.9,0.99", "(0.9, 0.99)" or a list."""
    parts = re.split(r"[,\s]+", raw.strip().strip("()[]")) if isinstance(raw, str) else raw
    if not isinstance(parts, list | tuple) or len(parts) != 2:
        raise SpellingFault("is not two numbers.", "Write 0.9,0.999.")
    first, second = (parse_float(part) for part in parts)
    return first, second


def parse_rate(raw: object) -> float:
    """A learning rate; a list counts when all its numbers are equal (kohya: one per text encoder)."""
    if isinstance(raw, list | tuple) and raw:
        rates = {parse_float(rate) for rate in raw}
        if len(rates) > 1:
            raise SpellingFault("holds several rates.", "All text encoders share one text_encoder_lr.")
        return rates.pop()
    return parse_float(raw)


def parse_prompts(raw: object) -> tuple[str, ...]:
    """Prompts from a list or from text with one on each line."""
    lines = raw.splitlines() if isinstance(raw, str) else raw
    if not isinstance(lines, list | tuple):
        raise SpellingFault("is no list of prompts.", "Write one prompt or a list of them, in quotes.")
    return tuple(text for line in lines if (text := parse_text(line)))


def parse_comment(raw: object) -> str:
    """Free text, its lines joined into one."""
    return parse_text(" ".join(raw.split()) if isinstance(raw, str) else raw)


def parse_seed(raw: object) -> object:
    """A seed; -1 means "any" to many front ends, so it counts as unset."""
    value = parse_int(raw)
    return UNSET if value == -1 else value


def shown(raw: object) -> str:
    """A short, one-line form of any value for messages: never long, however deep or large the value is."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, str):
        return raw if raw and raw.isprintable() and len(raw) <= 80 else _short.repr(raw)
    if isinstance(raw, tuple) and raw and all(isinstance(part, tuple) for part in raw):
        return ";".join(",".join(map(str, part)) for part in raw)
    return "unset" if raw is None else _short.repr(raw)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
_short.maxlevel = 3

_BY_TYPE: dict[Any, Callable[[object], object]] = {
    bool: parse_bool,
    int: parse_int,
    float: parse_float,
    str: parse_text,
}
_SPECIAL: dict[str, Callable[[object], object]] = {
    "resolution": parse_resolution,
    "mixed_precision": parse_precision,
    "save_precision": parse_save_precision,
    "optimizer_type": parse_optimizer,
    "optimizer_betas": parse_betas,
    "lr_scheduler": parse_scheduler,
    "save_model_as": parse_format,
    "text_encoder_lr": parse_rate,
    "sample_prompts": parse_prompts,
    "seed": parse_seed,
    "training_comment": parse_comment,
}
