"""What profiles of a card say of forecasts: where one plan was both forecast and measured, how far both are apart.

Owns the reading of those pairs. Pure: it must never read a store or a device.
"""

from collections.abc import Iterable, Iterator

from autotune.device.session import Evidence
from autotune.profile.schema import Profile, TrialNumbers
from autotune.trial.guide import Residual
from autotune.trial.outcome import Verdict


def card_residuals(profiles: Iterable[Profile], total_bytes: int) -> tuple[Residual, ...]:
    """The residuals in `profiles` made on a real card of `total_bytes`. Whoever calls has chosen them by the
    card's name. Pairs that can't be of the same job are left out: a profile is a hint."""
    return tuple(
        residual
        for profile in profiles
        if profile.evidence is Evidence.MEASURED and profile.gpu.total_bytes == total_bytes
        for residual in _pairs(profile)
        if residual.believable
    )


def _pairs(profile: Profile) -> Iterator[Residual]:
    """Measured beside forecast, of plans that have both. Only a fit has reserved all that it needs."""
    for measured in profile.trials:
        if measured.evidence is Evidence.MEASURED and measured.verdict is Verdict.FITS:
            forecast = _forecast_of(profile, measured)
            if forecast is not None and measured.peak_reserved_bytes is not None:
                yield Residual(forecast, measured.peak_reserved_bytes)


def _forecast_of(profile: Profile, measured: TrialNumbers) -> int | None:
    alike = (t for t in profile.trials if t.evidence is Evidence.FORECAST and t.plan == measured.plan)
    return next((trial.peak_reserved_bytes for trial in alike), None)
