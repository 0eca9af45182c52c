"""Rules that span several settings. Owns conflicts and their resolution, each named in a note or refused
with a sentence; never reads a config file and never looks at the GPU.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from autotune.errors import ConfigError
from trainer.config.schema import TrainConfig
from trainer.config.values import shown


@dataclass
class Draft:
    """Settings on their way to a TrainConfig: typed values, origin of each, notes in order.

    `faults` holds values that can't be read: a later file or an override may still put a good one in place.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: dict[str, ConfigError] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        """The value in force: the one set, else the default."""
        return self.values.get(key, TrainConfig.model_fields[key].default)

    def fault(self, key: str, problem: str, way_out: str) -> ConfigError:
        """The error that names where `key` was set, and its value."""
        origin = self.origins.get(key, "the default")
        return ConfigError(f"{origin}: {key} = {shown(self.get(key))} {problem}", way_out)


def settle(draft: Draft) -> None:
    """Apply every rule to `draft`, in place. Raises ConfigError for settings that contradict each other."""
    for rule in (
        _train_something,
        _keep_text_encoders_when_trained,
        _keep_captions_alive,
        _cut_resolution,
        _round_bucket_step,
        _fit_buckets,
        _let_epochs_win,
        _name_idle_warmup,
        _name_default_alpha,
        _name_wild_rate,
        _name_idle_keys,
        _refuse_path_as_name,
    ):
        rule(draft)


def _train_something(draft: Draft) -> None:
    if draft.get("network_train_unet_only") and draft.get("network_train_text_encoder_only"):
        key = "network_train_text_encoder_only"
        raise draft.fault(key, "and network_train_unet_only = true leave nothing to train.", "Keep one of them.")
    rates = {
        "unet_lr": not draft.get("network_train_text_encoder_only"),
        "text_encoder_lr": not draft.get("network_train_unet_only"),
    }
    general = draft.get("learning_rate")
    active = [general if draft.get(key) is None else draft.get(key) for key, trained in rates.items() if trained]
    if not any(active):
        key = "learning_rate" if general == 0 else next(key for key, trained in rates.items() if trained)
        raise draft.fault(key, "leaves nothing to train: every learning rate is 0.", "Set one, such as 1e-4.")


def _trains_text_encoder(draft: Draft) -> bool:
    rate = draft.get("text_encoder_lr")
    rate = draft.get("learning_rate") if rate is None else rate
    return not draft.get("network_train_unet_only") and rate != 0


def _keep_text_encoders_when_trained(draft: Draft) -> None:
    if draft.get("cache_text_encoder_outputs") and _trains_text_encoder(draft):
        draft.values["cache_text_encoder_outputs"] = False
        draft.notes.append(
            "cache_text_encoder_outputs is off: it conflicts with training the text encoders, whose outputs"
            " change; set network_train_unet_only = true to cache them"
        )


def _keep_captions_alive(draft: Draft) -> None:
    changing = [key for key in ("shuffle_caption", "caption_dropout_rate") if draft.get(key)]
    if draft.get("cache_text_encoder_outputs") and changing:
        draft.values["cache_text_encoder_outputs"] = False
        draft.notes.append(
            f"cache_text_encoder_outputs is off: it conflicts with {' and '.join(changing)}, which change"
            " captions at every step; turn that off to cache"
        )


def _cut_resolution(draft: Draft) -> None:
    """A latent pixel is 8 pixels wide."""
    sizes = draft.get("resolution")
    cut = tuple(dict.fromkeys((width // 8 * 8, height // 8 * 8) for width, height in sizes))
    if cut != sizes:
        draft.notes.append(f"resolution = {shown(sizes)} is read as {shown(cut)}: sides are multiples of 8 pixels")
        draft.values["resolution"] = cut


def _round_bucket_step(draft: Draft) -> None:
    step = draft.get("bucket_reso_steps")
    rounded = max(8, -(-step // 8) * 8)
    if step > 0 and rounded != step:
        draft.notes.append(f"bucket_reso_steps = {step} is read as {rounded}: a latent pixel is 8 pixels wide")
        draft.values["bucket_reso_steps"] = rounded


def _fit_buckets(draft: Draft) -> None:
    """kohya asserts that every resolution lies between the bucket bounds, moved outward to the step."""
    if not draft.get("enable_bucket") or draft.get("bucket_no_upscale") or draft.get("bucket_reso_steps") < 1:
        return
    step, least, most = (
        draft.get(f"{name}") for name in ("bucket_reso_steps", "min_bucket_reso", "max_bucket_reso")
    )
    least, most = least // step * step, -(-most // step) * step
    if least > most:
        raise draft.fault("min_bucket_reso", f"is above max_bucket_reso = {most}.", "Swap them.")
    for size in draft.get("resolution"):
        if max(size) > most:
            way_out = f"Set max_bucket_reso to {max(size)} or more, or lower the resolution."
            raise draft.fault("resolution", f"is above max_bucket_reso = {most}.", way_out)
        if min(size) < least:
            way_out = f"Set min_bucket_reso to {min(size)} or less, or raise the resolution."
            raise draft.fault("resolution", f"is below min_bucket_reso = {least}.", way_out)


def _let_epochs_win(draft: Draft) -> None:
    epochs, steps = draft.values.get("max_train_epochs"), draft.values.get("max_train_steps")
    if epochs and steps:
        draft.notes.append(f"max_train_steps = {steps} is not used: max_train_epochs = {epochs} wins")


def _name_idle_warmup(draft: Draft) -> None:
    if draft.get("lr_warmup_steps") and draft.get("lr_scheduler") == "constant":
        draft.notes.append(
            f"lr_warmup_steps = {shown(draft.get('lr_warmup_steps'))} has no effect with"
            " lr_scheduler = constant: constant_with_warmup warms up"
        )


def _name_default_alpha(draft: Draft) -> None:
    if draft.values.get("network_alpha") == 0:  # kohya: 0 means the rank
        draft.values["network_alpha"] = float(draft.get("network_dim"))
        draft.notes.append(f"network_alpha = 0 is read as network_dim = {draft.get('network_dim')}")
    if "network_dim" in draft.values and "network_alpha" not in draft.values:
        rank = draft.values["network_dim"]
        draft.notes.append(f"network_alpha is not set: 1, kohya's default, so the LoRA is scaled by 1/{rank}")


def _name_wild_rate(draft: Draft) -> None:
    wild = [key for key in ("learning_rate", "unet_lr", "text_encoder_lr") if (draft.values.get(key) or 0) >= 0.1]
    if wild:
        draft.notes.append(
            f"{wild[0]} = {shown(draft.values[wild[0]])} is far too high for {draft.get('optimizer_type')}:"
            " it suits optimizers that set their own rate, such as Prodigy; 1e-4 is usual here"
        )


def _name_idle_keys(draft: Draft) -> None:
    """Keys that another one puts out of action; their defaults, which front ends write out, are no news."""
    for key, (switch, idle_values) in _GATES:
        value = draft.values.get(key)
        if value and value != TrainConfig.model_fields[key].default and draft.get(switch) in idle_values:
            draft.notes.append(f"{key} = {shown(value)} has no effect with {switch} = {shown(draft.get(switch))}")


def _all_but(name: str) -> tuple[str, ...]:
    return tuple(other for other in get_args(TrainConfig.model_fields["lr_scheduler"].annotation) if other != name)


_OFF, _ON = (False,), (True,)
_GATES: tuple[tuple[str, tuple[str, tuple[object, ...]]], ...] = (
    ("bucket_no_upscale", ("enable_bucket", _OFF)),
    ("min_bucket_reso", ("enable_bucket", _OFF)),
    ("max_bucket_reso", ("enable_bucket", _OFF)),
    ("bucket_reso_steps", ("enable_bucket", _OFF)),
    ("keep_tokens", ("shuffle_caption", _OFF)),
    ("vae_batch_size", ("cache_latents", _OFF)),
    ("unet_lr", ("network_train_text_encoder_only", _ON)),
    ("text_encoder_lr", ("network_train_unet_only", _ON)),
    ("lr_scheduler_num_cycles", ("lr_scheduler", _all_but("cosine_with_restarts"))),
    ("lr_scheduler_power", ("lr_scheduler", _all_but("polynomial"))),
)


def _refuse_path_as_name(draft: Draft) -> None:
    name = draft.get("output_name")
    if any(mark in name for mark in '/\\:*?"<>|') or name.strip(".") == "":
        raise draft.fault("output_name", "is no plain file name.", "Put the folder in output_dir.")


def read_prompts(draft: Draft) -> None:
    """kohya's sample_prompts may name a text file with one prompt a line; options are not used yet."""
    prompts = draft.get("sample_prompts")
    if len(prompts) == 1 and prompts[0].lower().endswith((".txt", ".json", ".toml")):
        prompts = _prompts_in(draft, Path(prompts[0]).expanduser())
    options = sorted({word for prompt in prompts for word in prompt.split() if word.startswith("--")})
    if options:
        draft.notes.append(f"known, not used yet: sample_prompts {' '.join(options)}: cut from the prompts")
        prompts = tuple(prompt.split(" --")[0].strip() for prompt in prompts)
    if prompts != draft.get("sample_prompts"):
        draft.values["sample_prompts"] = tuple(prompt for prompt in prompts if prompt and prompt[:2] != "--")


def _prompts_in(draft: Draft, path: Path) -> tuple[str, ...]:
    from trainer.config.text import read_text

    if path.suffix.lower() != ".txt":
        draft.notes.append(f"known, not used yet: sample_prompts = {path}: only .txt files of prompts are read")
        return ()
    lines = [line.strip() for line in read_text(path).text.splitlines()]
    return tuple(line for line in lines if line and not line.startswith("#"))
