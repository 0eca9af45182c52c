"""Sampling of each transformer family is its pipeline's own arithmetic: packing, positions, time and sign."""

from dataclasses import replace
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from autotune.device.session import DeviceSession
from autotune.device.virtual import VirtualSession
from autotune.testing.tiny_transformers import tiny_components
from autotune.units import GIB
from trainer.families.components import Components
from trainer.families.conditioning import Conditioning
from trainer.families.family import get_family
from trainer.families.sample import _denoise
from trainer.families.text import encode_prompts

STEPS, SIZE, SEED = 3, (96, 64), 5
EVENLY = [1.0, 2 / 3, 1 / 3]
FLOW = {"shift": 1.0}


class EvenScheduler(diffusers.FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
    """For a pipeline that takes no levels from its caller."""

    def set_timesteps(self, *args: Any, device: Any = None, **options: Any) -> None:
        super().set_timesteps(sigmas=EVENLY, device=device)


def parts(name: str) -> tuple[Components, Conditioning, Conditioning, Tensor]:
    """A tiny model with an even schedule, what it is told of a prompt and of none, and the first noise."""
    family, components = get_family(name), tiny_components(name)
    if family.rule.prediction_type == "flow":
        components = replace(components, scheduler=family.rule.schedule(FLOW))
    with torch.no_grad():
        wanted, unwanted = (encode_prompts(components, [prompt]) for prompt in ("a cat on a mat", ""))
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn((1, *family.latent_shape(components, SIZE)), generator=generator)
    return components, wanted, unwanted, noise


@torch.no_grad()
def ours(components: Components, told: list[Conditioning], guidance: float) -> Tensor:
    device: DeviceSession = VirtualSession(GIB)
    with device.scope():
        device.place(components.denoiser)
        latents = _denoise(components, told, SIZE, STEPS, SEED, device, guidance, lambda done, total: None)
        return device.evict(latents).clone()


def theirs(kind: str, components: Components, call: dict[str, Any], *empty: str) -> Any:
    """What the pipeline of class `kind` makes of the same modules, told in embeddings."""
    absent = dict.fromkeys(empty)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    modules = {"transformer": components.denoiser, "vae": components.vae, "scheduler": scheduler}
    pipeline = getattr(diffusers, kind)(**{**modules, **absent, **call.pop("modules", {})})
    pipeline.set_progress_bar_config(disable=True)
    size = {"width": SIZE[0], "height": SIZE[1], "num_inference_steps": STEPS}
    return pipeline(**size, output_type="latent", **call)[0]


def test_flux1() -> None:
    components, wanted, _, noise = parts("flux1")
    call = {
        "prompt_embeds": wanted.hidden,
        "pooled_prompt_embeds": wanted.pooled,
        "guidance_scale": 3.5,
        "sigmas": EVENLY,
        "latents": diffusers.FluxPipeline._pack_latents(noise, 1, 16, *noise.shape[2:]),
    }
    empty = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    packed = theirs("FluxPipeline", components, call, *empty)
    expected = diffusers.FluxPipeline._unpack_latents(packed, SIZE[1], SIZE[0], 8)
    torch.testing.assert_close(ours(components, [wanted], 1.0), expected, rtol=1e-4, atol=1e-4)


def test_sd3() -> None:
    components, wanted, unwanted, noise = parts("sd3")
    call = {
        "prompt_embeds": wanted.hidden,
        "pooled_prompt_embeds": wanted.pooled,
        "negative_prompt_embeds": unwanted.hidden,
        "negative_pooled_prompt_embeds": unwanted.pooled,
        "guidance_scale": 7.0,
        "sigmas": EVENLY,
        "latents": noise,
    }
    numbered = [f"{part}{number}" for part in ("text_encoder", "tokenizer") for number in ("", "_2", "_3")]
    expected = theirs("StableDiffusion3Pipeline", components, call, *numbered)
    torch.testing.assert_close(ours(components, [wanted, unwanted], 7.0), expected, rtol=1e-4, atol=1e-4)


def test_flux2() -> None:
    components, wanted, unwanted, noise = parts("flux2")
    call = {
        "prompt_embeds": wanted.hidden,
        "negative_prompt_embeds": unwanted.hidden,
        "guidance_scale": 4.0,
        "sigmas": EVENLY,
        "latents": noise,
    }
    unpatched = theirs("Flux2KleinPipeline", components, call, "text_encoder", "tokenizer")
    codec = get_family("flux2").codec
    mine = codec.unscaled(components.vae, ours(components, [wanted, unwanted], 4.0))
    torch.testing.assert_close(mine, unpatched, rtol=1e-4, atol=1e-4)


def test_zimage() -> None:
    components, wanted, unwanted, noise = parts("zimage")
    embeds, negative = ([c.hidden[0, : c.lengths[0]]] for c in (wanted, unwanted) if c.lengths)
    call = {
        "prompt_embeds": embeds,
        "negative_prompt_embeds": negative,
        "guidance_scale": 4.0,
        "sigmas": EVENLY,
        "latents": noise,
    }
    expected = theirs("ZImagePipeline", components, call, "text_encoder", "tokenizer")
    torch.testing.assert_close(ours(components, [wanted, unwanted], 5.0), expected, rtol=1e-4, atol=1e-4)


def test_pixart() -> None:
    components, wanted, unwanted, noise = parts("pixart")
    scheduler = diffusers.DDIMScheduler.from_config(
        components.scheduler.config, clip_sample=False, set_alpha_to_one=False, steps_offset=1
    )
    masks = [torch.arange(c.hidden.shape[1])[None] < c.lengths[0] for c in (wanted, unwanted) if c.lengths]
    call = {
        "modules": {"scheduler": scheduler},
        "prompt_embeds": wanted.hidden,
        "prompt_attention_mask": masks[0].long(),
        "negative_prompt": None,
        "negative_prompt_embeds": unwanted.hidden,
        "negative_prompt_attention_mask": masks[1].long(),
        "guidance_scale": 4.5,
        "latents": noise,
        "use_resolution_binning": False,
    }
    expected = theirs("PixArtSigmaPipeline", components, call, "text_encoder", "tokenizer")
    torch.testing.assert_close(ours(components, [wanted, unwanted], 4.5), expected, rtol=1e-4, atol=1e-4)


def test_chroma() -> None:
    components, wanted, unwanted, noise = parts("chroma")
    masks = [torch.arange(c.hidden.shape[1])[None] <= c.lengths[0] for c in (wanted, unwanted) if c.lengths]
    call = {
        "prompt_embeds": wanted.hidden,
        "prompt_attention_mask": masks[0],
        "negative_prompt_embeds": unwanted.hidden,
        "negative_prompt_attention_mask": masks[1],
        "guidance_scale": 4.0,
        "sigmas": EVENLY,
        "latents": diffusers.ChromaPipeline._pack_latents(noise, 1, 16, *noise.shape[2:]),
    }
    packed = theirs("ChromaPipeline", components, call, "text_encoder", "tokenizer")
    expected = diffusers.ChromaPipeline._unpack_latents(packed, SIZE[1], SIZE[0], 8)
    torch.testing.assert_close(ours(components, [wanted, unwanted], 4.0), expected, rtol=1e-4, atol=1e-4)


def test_auraflow() -> None:
    components, wanted, unwanted, noise = parts("auraflow")
    ones = torch.ones(1, wanted.hidden.shape[1])
    call = {
        "prompt_embeds": wanted.hidden,
        "prompt_attention_mask": ones,
        "negative_prompt_embeds": unwanted.hidden,
        "negative_prompt_attention_mask": ones,
        "guidance_scale": 3.5,
        "sigmas": EVENLY,
        "latents": noise,
    }
    expected = theirs("AuraFlowPipeline", components, call, "text_encoder", "tokenizer")
    torch.testing.assert_close(ours(components, [wanted, unwanted], 3.5), expected, rtol=1e-4, atol=1e-4)


def test_qwenimage() -> None:
    components, wanted, _, noise = parts("qwenimage")
    assert wanted.lengths is not None
    call = {
        "prompt_embeds": wanted.hidden[:, : wanted.lengths[0]],
        "prompt_embeds_mask": torch.ones(1, wanted.lengths[0]),
        "true_cfg_scale": 1.0,
        "sigmas": EVENLY,
        "latents": diffusers.QwenImagePipeline._pack_latents(noise, 1, 16, *noise.shape[2:]),
    }
    packed = theirs("QwenImagePipeline", components, call, "text_encoder", "tokenizer")
    expected = diffusers.QwenImagePipeline._unpack_latents(packed, SIZE[1], SIZE[0], 8).squeeze(2)
    torch.testing.assert_close(ours(components, [wanted], 1.0), expected, rtol=1e-4, atol=1e-4)


def test_wan_takes_a_picture_for_a_video_of_one_frame() -> None:
    components, wanted, unwanted, noise = parts("wan")
    call = {
        "modules": {"scheduler": EvenScheduler()},
        "prompt_embeds": wanted.hidden,
        "negative_prompt_embeds": unwanted.hidden,
        "guidance_scale": 5.0,
        "num_frames": 1,
        "latents": noise.unsqueeze(2),
    }
    expected = theirs("WanPipeline", components, call, "text_encoder", "tokenizer")
    mine = ours(components, [wanted, unwanted], 5.0)
    torch.testing.assert_close(mine, expected.squeeze(2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["flux1", "sd3", "flux2", "zimage", "wan"])
def test_flow_matching_goes_straight_from_the_picture_to_the_noise(name: str) -> None:
    components = tiny_components(name)
    rule, schedule = get_family(name).rule, components.scheduler
    levels = rule.levels(schedule, torch.arange(1000))
    assert bool((levels[1:] > levels[:-1]).all())
    assert 0 < float(levels[0]) < float(levels[-1]) < 1
    latents, noise = torch.randn(1000, 1, 2, 2), torch.randn(1000, 1, 2, 2)
    noisy, velocity = (f(schedule, latents, noise, levels) for f in (rule.add_noise, rule.target))
    back = noisy - levels.reshape(-1, 1, 1, 1) * velocity
    torch.testing.assert_close(back, latents, rtol=1e-4, atol=1e-5)
