"""Where a step's latents and text embeddings come from: encoded once and kept on the host, or live each step.

Owns the placement of the VAE and the text encoders: a cached source has its model on the device only while it
encodes. Results never depend on how samples were batched, since each sample has its own randomness.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autotune.device.session import DeviceSession
from autotune.ladder.plan import Size
from trainer.config.schema import TrainConfig
from trainer.data.cache import LatentCache, LatentKey
from trainer.data.images import load_pixels
from trainer.data.samples import Sample
from trainer.data.seeds import caption_for, flip_for, sample_seed
from trainer.families.components import Components
from trainer.families.conditioning import Conditioning
from trainer.families.family import get_family
from trainer.families.text import encode_prompts
from trainer.families.vae import encode_latents
from trainer.precision import Precision

Progress = Callable[[int, int], None]
ReadPixels = Callable[[Sample, Size, bool], Tensor]  # float32 (3, height, width) in [-1, 1] on the host
BucketOf = Callable[[int], Size]
_Flipped = tuple[Sample, bool]
_CACHED = -1  # what is encoded once belongs to no step


@dataclass
class LatentSource:
    """Latents of samples at their buckets, (B, C, h, w) on the device."""

    config: TrainConfig
    components: Components
    device: DeviceSession
    bucket_of: BucketOf
    cache: LatentCache
    read_pixels: ReadPixels = load_pixels

    def fill(self, samples: Sequence[Sample], progress: Progress) -> None:
        """Encode what the cache lacks with the VAE on the device, which it leaves afterwards."""
        wanted = {self._key(sample, flip): (sample, flip) for sample in samples for flip in self._flips()}
        missing = [pair for key, pair in wanted.items() if key not in self.cache]
        if not missing:
            return
        vae, done = self.device.place(self.components.vae), 0
        try:
            for batch in self._encoder_batches(missing):
                self._keep(batch)
                done += len(batch)
                progress(done, len(missing))
        finally:
            self.device.evict(vae)
            self.device.empty_cache()

    def latents(self, samples: Sequence[Sample], step: int) -> Tensor:
        """The samples' latents for this step, from the cache when it is on."""
        flips = [self.flip(sample, step) for sample in samples]
        if not self.config.cache_latents:
            return self._encode(samples, flips, step)
        with self.device.host():
            stacked = torch.stack([self.cache.get(self._key(s, f)) for s, f in zip(samples, flips, strict=True)])
        return self.device.place(stacked)

    def flip(self, sample: Sample, step: int) -> bool:
        """Whether the sample's picture is mirrored in this step."""
        return flip_for(self.config, sample_seed(self.config.seed, step, sample.index, "flip"))

    def _encoder_batches(self, pairs: Sequence[_Flipped]) -> Iterator[list[_Flipped]]:
        """`pairs` in batches of one bucket and at most vae_batch_size."""
        by_bucket: defaultdict[Size, list[_Flipped]] = defaultdict(list)
        for sample, flip in pairs:
            by_bucket[self.bucket_of(sample.index)].append((sample, flip))
        size = max(1, self.config.vae_batch_size)
        for members in by_bucket.values():
            yield from (members[start : start + size] for start in range(0, len(members), size))

    def _keep(self, batch: Sequence[_Flipped]) -> None:
        latents = self._encode([s for s, _ in batch], [f for _, f in batch], step=_CACHED)
        with self.device.host():
            for (sample, flip), latent in zip(batch, self.device.evict(latents).unbind(), strict=True):
                self.cache.put(self._key(sample, flip), latent)

    def _key(self, sample: Sample, flip: bool) -> LatentKey:
        return self.cache.key(sample, self.bucket_of(sample.index), flip, self.components.vae_identity)

    def _flips(self) -> tuple[bool, ...]:
        return (False, True) if self.config.flip_aug else (False,)

    @torch.no_grad()
    def _encode(self, samples: Sequence[Sample], flips: Sequence[bool], step: int) -> Tensor:
        with self.device.host():
            pixels = torch.stack(
                [self.read_pixels(s, self.bucket_of(s.index), f) for s, f in zip(samples, flips, strict=True)]
            )
            generators = [_generator(self.config, step, sample, "posterior") for sample in samples]
        codec, check = get_family(self.components.family).codec, self.device.evidence.has_values
        return encode_latents(self.components.vae, self.device.place(pixels), generators, codec=codec, check=check)


@dataclass
class TextSource:
    """Text conditioning of samples on the device."""

    config: TrainConfig
    components: Components
    device: DeviceSession
    precision: Precision
    _kept: dict[str, Conditioning] = field(default_factory=dict)

    @property
    def cached(self) -> bool:
        """Whether embeddings are computed once."""
        return self.config.caches_text

    def fill(self, samples: Sequence[Sample], progress: Progress) -> None:
        """Encode every distinct caption with the text encoders on the device, which they leave afterwards."""
        captions = sorted({self._caption(sample, _CACHED) for sample in samples} - self._kept.keys())
        if not captions:
            return
        encoders = [self.device.place(encoder) for encoder in self.components.text_encoders]
        try:
            for done, caption in enumerate(captions, 1):
                with torch.no_grad():
                    encoded = self._encode([caption])
                with self.device.host():
                    self._kept[caption] = encoded.map(self.device.evict)
                progress(done, len(captions))
        finally:
            for encoder in encoders:
                self.device.evict(encoder)
            self.device.empty_cache()

    def conditioning(self, samples: Sequence[Sample], step: int) -> Conditioning:
        """The samples' conditioning; with gradients when the text encoders train."""
        captions = [self._caption(sample, step) for sample in samples]
        if self.cached:
            with self.device.host():
                stacked = Conditioning.stack([self._kept[caption] for caption in captions])
            return stacked.map(self.device.place)
        with nullcontext() if self.config.trains_text_encoder else torch.no_grad():
            return self._encode(captions)

    def _caption(self, sample: Sample, step: int) -> str:
        return caption_for(sample, self.config, sample_seed(self.config.seed, step, sample.index, "caption"))

    def _encode(self, captions: list[str]) -> Conditioning:
        with self.precision.autocast(self.device.torch_device):
            return encode_prompts(self.components, captions, self.config.clip_skip)


def noise_for(config: TrainConfig, samples: Sequence[Sample], step: int, like: Tensor) -> Tensor:
    """Standard normal noise (B, C, h, w) in float32 on the host, from (seed, step, sample) alone."""
    shape = like.shape[1:]
    noises = []
    for sample in samples:
        generator = _generator(config, step, sample, "noise")
        noise = torch.randn(shape, generator=generator)
        if config.noise_offset:
            noise = noise + config.noise_offset * torch.randn(shape[0], 1, 1, generator=generator)
        noises.append(noise)
    return torch.stack(noises)


def timesteps_for(config: TrainConfig, samples: Sequence[Sample], step: int, count: int) -> Tensor:
    """One timestep in [0, count) per sample, int64 on the host, from (seed, step, sample) alone."""
    return torch.tensor([sample_seed(config.seed, step, s.index, "timestep") % count for s in samples])


def _generator(config: TrainConfig, step: int, sample: Sample, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(sample_seed(config.seed, step, sample.index, purpose))
