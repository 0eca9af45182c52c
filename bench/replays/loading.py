"""What the PEFT benchmark does on the card before its first step: residents loaded, prompts and pictures encoded.

Owns the order of it, because what is loaded beside what shapes the memory that stays reserved. Must never keep the
text encoder or the VAE on the card.
"""

from dataclasses import dataclass
from typing import Any

import torch

from autotune.device.session import DeviceSession
from bench.replays.build import place
from bench.replays.denoisers import DenoiserKind
from bench.replays.loops import PROMPTS, REPEATS, Cached

_LAYERS_READ = (10, 20, 30)
_TEXT_TOKENS = 512
_QWEN3_4B = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Residents:
    """What stays on the card beside the denoiser, and what comes and goes: the VAE and the text encoder."""

    cached: Cached
    vision: Any
    vae: Any
    encoder: Any


def load_residents(model: Any, kind: DenoiserKind, device: DeviceSession) -> Residents:
    """Load `model` and its company in the benchmark's order; the model was built on `meta`."""
    card = device.torch_device
    picks = [torch.randperm(PROMPTS, device=card) for _ in range(REPEATS)]
    indices = torch.cat(picks)
    del picks
    vision = _vision_model().to_empty(device=card)
    place(model, card)
    encoder, vae = _text_encoder(), _picture_encoder()
    prompts, text_ids = _encode_prompts(encoder, device)
    latents = _encode_pictures(vae, device)
    return Residents(Cached(indices, prompts, text_ids, latents), vision, vae, encoder)


@torch.inference_mode()
def evaluate(model: Any, residents: Residents, device: DeviceSession) -> None:
    """The benchmark's evaluation, as far as it shapes memory: one picture sampled with guidance, decoded and
    described; then unused segments are given back and peaks start anew."""
    card = device.torch_device
    model.eval()
    residents.encoder.to_empty(device=card)
    residents.vae.to_empty(device=card)
    prompt, _ = _encode(residents.encoder, card)
    latents = torch.zeros(1, 1024, 128, dtype=torch.bfloat16, device=card)
    ids = [torch.zeros(1, tokens, 4, dtype=torch.int64, device=card) for tokens in (1024, _TEXT_TOKENS)]
    for _ in range(2):
        values = {"encoder_hidden_states": prompt, "img_ids": ids[0], "txt_ids": ids[1], "return_dict": False}
        timestep = torch.zeros(1, device=card)
        with_prompt = model(hidden_states=latents, timestep=timestep, guidance=None, **values)[0]
        without = model(hidden_states=latents, timestep=timestep, guidance=None, **values)[0]
        latents = without + 3.5 * (with_prompt - without)
    picture = residents.vae.decode(latents.reshape(1, 32, 64, 64), return_dict=False)[0]
    residents.vision(pixel_values=torch.zeros(1, 3, 224, 224, device=card))
    del picture, latents, with_prompt, without, prompt, ids
    residents.encoder.to("meta")
    residents.vae.to("meta")
    model.train()
    device.empty_cache()
    device.reset_peak()


def _vision_model() -> Any:
    from transformers import Dinov2Config, Dinov2Model

    with torch.device("meta"):
        return Dinov2Model(Dinov2Config(image_size=518, patch_size=14)).eval()


def _text_encoder() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.device("meta"):
        return Qwen3ForCausalLM(Qwen3Config(**_QWEN3_4B)).to(torch.bfloat16).eval()


def _picture_encoder() -> Any:
    from diffusers import AutoencoderKLFlux2

    with torch.device("meta"):
        return AutoencoderKLFlux2().to(torch.bfloat16).eval()


@torch.no_grad()
def _encode_prompts(encoder: Any, device: DeviceSession) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings (14, 512, 7680) bf16 of three hidden states side by side, and position ids (14, 512, 4)."""
    encoder.to_empty(device=device.torch_device)
    encoded = [_encode(encoder, device.torch_device) for _ in range(PROMPTS)]
    encoder.to("meta")
    embeddings, ids = zip(*encoded, strict=True)
    return torch.cat(embeddings, dim=0), torch.cat(ids, dim=0)


def _encode(encoder: Any, card: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.zeros(1, _TEXT_TOKENS, dtype=torch.int64).to(card)
    mask = torch.ones(1, _TEXT_TOKENS, dtype=torch.int64).to(card)
    output = encoder(input_ids=tokens, attention_mask=mask, output_hidden_states=True, use_cache=False)
    stacked = torch.stack([output.hidden_states[layer] for layer in _LAYERS_READ], dim=1)
    embedding = stacked.permute(0, 2, 1, 3).reshape(1, _TEXT_TOKENS, -1)
    return embedding, torch.zeros(1, _TEXT_TOKENS, 4, dtype=torch.int64).to(card)


@torch.no_grad()
def _encode_pictures(vae: Any, device: DeviceSession) -> torch.Tensor:
    """Latents (14, 128, 32, 32) bf16, encoded two pictures at a time."""
    card = device.torch_device
    vae.to_empty(device=card)
    cached = []
    for _ in range(PROMPTS // 2):
        pixels = torch.zeros(2, 3, 512, 512).to(device=card, dtype=torch.bfloat16)
        latents = vae.encode(pixels).latent_dist.mode()
        folded = latents.view(2, 32, 32, 2, 32, 2).permute(0, 1, 3, 5, 2, 4).reshape(2, 128, 32, 32)
        cached.append((folded - 0.0) / 1.0)
        del pixels, latents, folded
    vae.to("meta")
    return torch.cat(cached, dim=0)
