"""Every family trains for real, at a small size, through the trainer's own session on the virtual GPU."""

import math

import pytest

from autotune.device.virtual import VirtualSession
from autotune.ladder.plan import Plan
from autotune.testing.photos import write_demo_dataset
from autotune.testing.tiny_transformers import tiny_components
from autotune.units import GIB
from trainer.adapters.lora import Adapter, largest_change
from trainer.config.schema import TrainConfig
from trainer.data.samples import Dataset, load_dataset
from trainer.families.components import Components
from trainer.families.family import family_names
from trainer.session import Setup, TrainingSession

SIDE = 64
every_family = pytest.mark.parametrize("name", family_names())


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, Dataset]:
    folder = write_demo_dataset(tmp_path_factory.mktemp("photos"), "flat")
    config = TrainConfig(
        pretrained_model_name_or_path="tiny",
        train_data_dir=str(folder),
        resolution=((SIDE, SIDE),),
        train_batch_size=2,
        learning_rate=1e-2,
        network_train_unet_only=True,
        cache_text_encoder_outputs=True,
    )
    return config, load_dataset(config)


def train(
    components: Components, config: TrainConfig, dataset: Dataset, *, checkpointing: bool
) -> tuple[list[float], bytes, Adapter]:
    """Losses of the same batch thrice, a picture, and the trained adapter."""
    plan = Plan.of(batch_size=2, resolution=((SIDE, SIDE),), gradient_checkpointing=checkpointing, network_dim=4)
    device, batch = VirtualSession(4 * GIB), dataset.samples[:2]
    buckets = {sample.index: (SIDE, SIDE) for sample in dataset.samples}
    with device.scope():
        session = TrainingSession(Setup(config, components, dataset, 10), plan, device, buckets)
        try:
            session.cache_latents(batch, lambda done, total: None)
            session.cache_text(batch, lambda done, total: None)
            session.load()
            losses = [session.step(batch, 0).loss for _ in range(3)]
            picture = session.picture_file("a photo", 2, lambda done, total: None)
            assert session.lora_file("lora", 3, 1)
            return losses, picture, session.parts.adapter
        finally:
            session.close()


@every_family
def test_a_tiny_model_learns_and_paints_and_checkpointing_changes_nothing(
    name: str, photos: tuple[TrainConfig, Dataset]
) -> None:
    losses, picture, adapter = train(tiny_components(name), *photos, checkpointing=False)
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]  # the same noise on the same pictures: it must go down
    assert largest_change(adapter) > 0
    assert picture.startswith(b"\x89PNG")

    again, _, other = train(tiny_components(name), *photos, checkpointing=True)
    assert again == pytest.approx(losses, rel=1e-5)
    pairs = zip(adapter.parameters(), other.parameters(), strict=True)
    assert max(float((one - two).detach().abs().max()) for one, two in pairs) < 1e-4


def test_text_encoders_of_flux_train_when_asked(photos: tuple[TrainConfig, Dataset]) -> None:
    config = photos[0].model_copy(
        update={"network_train_unet_only": False, "cache_text_encoder_outputs": False, "text_encoder_lr": 1e-2}
    )
    plain, _, _ = train(tiny_components("flux1"), photos[0], photos[1], checkpointing=False)
    losses, _, adapter = train(tiny_components("flux1"), config, photos[1], checkpointing=True)
    assert losses[0] == pytest.approx(plain[0], rel=1e-5)
    assert losses[-1] < losses[0]
    changes = [bool(up.any()) for up in adapter.parameters("text_encoder")[1::2]]
    assert len(changes) == 2 * 6
    assert all(changes)
