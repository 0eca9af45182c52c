"""The profile: what was learned on one GPU model for one workload. Its schema (version 1), form and identity.

Owns the shape, the limits and the canonical form. A profile is data only and a hint: reading one must never
run, write or trust anything. Nothing that names a host, device UUID, path, dataset or prompt may enter it:
there is no free text, and every string is a short token of a narrow alphabet, without blanks
but for the card's name.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeVar

import rfc8785
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic.config import JsonDict
from typing_extensions import TypeAliasType

from autotune.device.session import Evidence
from autotune.errors import ProfileError
from autotune.ladder.plan import Plan
from autotune.trial.outcome import Verdict

SCHEMA_VERSION: Final = 1
MAX_PROFILE_BYTES: Final = 64 << 10

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MAX_JSON_INTEGER = (1 << 53) - 1  # RFC 8785: the integers every JSON reader agrees on


def _refuse_uuid(text: str) -> str:
    if _UUID.search(text):
        raise ValueError("it holds a UUID, which names one device or machine")
    return text


_KINDS: Final = (  # bool before int, which it is
    (bool, "<boolean>"),
    (int, "<integer>"),
    (float, "<number>"),
    (str, "<text>"),
    (list | tuple, "<list>"),
    (dict, "<table>"),
    (type(None), "<null>"),
)


def _kind(value: Any) -> str | None:
    """The kind of a JSON value, so that an error speaks of that kind alone."""
    return next((kind for type_, kind in _KINDS if isinstance(value, type_)), None)


_NO_UUID: Final[JsonDict] = {"not": {"pattern": _UUID.pattern}}
Token = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9._+:,()=-]{1,80}$", json_schema_extra=_NO_UUID),
    AfterValidator(_refuse_uuid),
]
Key = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,63}$"), AfterValidator(_refuse_uuid)]
FileName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", json_schema_extra=_NO_UUID),
    AfterValidator(_refuse_uuid),
]
GpuName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+:()-]{0,95}$", json_schema_extra=_NO_UUID),
    AfterValidator(_refuse_uuid),
]
Bytes = Annotated[int, Field(ge=0, le=_MAX_JSON_INTEGER)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Milliseconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=-_MAX_JSON_INTEGER, le=_MAX_JSON_INTEGER, allow_inf_nan=False)]
Integer = Annotated[int, Field(ge=-_MAX_JSON_INTEGER, le=_MAX_JSON_INTEGER)]

Pixels = Annotated[int, Field(ge=1, le=1 << 16)]
Sizes = Annotated[list[tuple[Pixels, Pixels]], Field(min_length=1, max_length=64)]
_BY_KIND = Discriminator(
    _kind,
    custom_error_type="kind",
    custom_error_message="Input is of a kind that may not stand here",
)
PlanValue = Annotated[
    Annotated[bool, Tag("<boolean>")] | Annotated[Count, Tag("<integer>")] | Annotated[Sizes, Tag("<list>")],
    _BY_KIND,
]
PlanValues = Annotated[dict[Key, PlanValue], Field(min_length=1, max_length=32)]
Fact = TypeAliasType(
    "Fact",
    Annotated[
        Annotated[bool, Tag("<boolean>")]
        | Annotated[Integer, Tag("<integer>")]
        | Annotated[Number, Tag("<number>")]
        | Annotated[Token, Tag("<text>")]
        | Annotated["list[Fact]", Tag("<list>")]
        | Annotated["dict[Key, Fact]", Tag("<table>")]
        | Annotated[None, Tag("<null>")],
        _BY_KIND,
    ],
)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


Model = TypeVar("Model", bound=_Strict)


class Gpu(_Strict):
    """The card. `context_bytes` is what a process takes beside the allocator's reserve (0 if unknown)."""

    name: GpuName
    total_bytes: Bytes
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]{1,2}$")] | None = None
    context_bytes: Bytes = 0


class WorkloadFacts(_Strict):
    """What was trained: a label for people and file names, and the facts that decide a match."""

    label: FileName
    facts: dict[Key, Fact]


class RecipeValues(_Strict):
    """What the user asked for."""

    plan: PlanValues
    effective_batch: Count
    processes: Count = 1
    floors: Annotated[dict[Key, Count], Field(max_length=32)] = {}


class LadderStage(_Strict):
    """Steps on one knob in a row: so many, or on to its floor."""

    knob: Key
    steps: Count | None = None
    to_floor: Literal[True] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "LadderStage":
        if (self.steps is None) == (self.to_floor is None):
            raise ValueError("a rung has either steps or to_floor")
        return self


class LadderForm(_Strict):
    """The ladder that was walked, in the form of a ladder file."""

    name: FileName
    floors: Annotated[dict[Key, Count], Field(max_length=32)] = {}
    rungs: Annotated[list[LadderStage], Field(min_length=1, max_length=256)]


class PhaseNumbers(_Strict):
    """The peaks of one phase of a trial."""

    phase: Token
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    alloc_retries: Bytes = 0


class TrialNumbers(_Strict):
    """One trial: its plan, its verdict, where it failed, its numbers, and the class all these are of."""

    plan: PlanValues
    verdict: Verdict
    evidence: Evidence
    failed_phase: Token | None = None
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    step_ms: Milliseconds | None = None
    phases: Annotated[list[PhaseNumbers], Field(max_length=64)] = []


class Profile(_Strict):
    """One profile.

    `evidence` is the class of the device it was made on. `versions` has, per class of evidence, the versions
    its numbers were got with: driver, cuda, torch, diffusers, autotune and the like.
    """

    schema_version: Literal[1]
    created: date
    evidence: Evidence
    gpu: Gpu
    versions: Annotated[dict[Evidence, dict[Key, Token]], Field(min_length=1)]
    workload: WorkloadFacts
    recipe: RecipeValues
    ladder: LadderForm
    budget_bytes: Bytes
    trials: Annotated[list[TrialNumbers], Field(min_length=1, max_length=1024)]
    trials_omitted: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    chosen: PlanValues

    @model_validator(mode="after")
    def _hangs_together(self) -> "Profile":
        classes = {self.evidence, *(trial.evidence for trial in self.trials)}
        if missing := sorted(classes - set(self.versions)):
            raise ValueError(f"versions lacks the class {missing[0]}, which trials have")
        if not any(trial.verdict is Verdict.FITS and trial.plan == self.chosen for trial in self.trials):
            raise ValueError("no trial says that the chosen plan fits")
        return self

    @property
    def chosen_plan(self) -> Plan:
        """The plan to use."""
        return Plan.from_json(self.chosen)

    @property
    def chosen_trial(self) -> TrialNumbers:
        """The trial that shows the chosen plan fits, of the profile's own class of evidence if it can be."""
        fitting = [t for t in self.trials if t.verdict is Verdict.FITS and t.plan == self.chosen]
        return next((trial for trial in fitting if trial.evidence is self.evidence), fitting[0])

    @cached_property
    def canonical_bytes(self) -> bytes:
        """The canonical JSON (RFC 8785), UTF-8: what is stored, hashed and signed."""
        return rfc8785.dumps(self.model_dump(mode="json"))

    @cached_property
    def digest(self) -> str:
        """The identity: sha256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical_bytes).hexdigest()


def parse_profile(content: bytes, source: str) -> Profile:
    """The profile in `content`; `source` names it in errors (a file or an address).

    Any JSON layout is read; identity is that of the canonical form. Raises ProfileError for what is too
    large, no JSON, of another schema version or against the schema, each with the values and the way out.
    """
    if len(content) > MAX_PROFILE_BYTES:
        raise ProfileError(
            f"{source}: {len(content):,} bytes are more than a profile may have ({MAX_PROFILE_BYTES:,}).",
            "It is no profile, or its list of trials must be shortened.",
        )
    values = _parse_json(content, source)
    _check_version(values, source)
    try:
        return Profile.model_validate_json(content)
    except ValidationError as error:
        raise _explain(error, source) from None


def parse_model(model: type[Model], values: Mapping[str, Any], source: str) -> Model:
    """`values` as this part of the schema (or `Profile` itself).

    Raises ProfileError naming the first key that is wrong, with its value.
    """
    try:
        return model.model_validate_json(json.dumps(values))
    except TypeError as error:
        raise ProfileError(f"{source}: no JSON: {error}.", "Use JSON values only.") from None
    except ValidationError as error:
        raise _explain(error, source) from None


def workload_digest(facts: Mapping[str, Any]) -> str:
    """The identity of a workload: sha256 of its facts' canonical JSON.

    Raises ProfileError if the facts are no JSON.
    """
    try:
        return hashlib.sha256(rfc8785.dumps(dict(facts))).hexdigest()
    except rfc8785.CanonicalizationError as error:
        raise ProfileError(f"the workload's facts are no JSON: {error}.", "Use JSON values only.") from None


def clean_gpu_name(name: str) -> str:
    """The name a driver reports, in a profile's alphabet: other characters become `-`."""
    cleaned = re.sub(r"[^A-Za-z0-9 ._+:()-]+", "-", name).lstrip(" -._+:()")[:96].rstrip(" -")
    return cleaned or "unnamed"


def clean_token(text: str) -> str:
    """A name such as a phase's, in the alphabet of tokens: other characters become `_`."""
    return re.sub(r"[^A-Za-z0-9._+:,()=-]+", "_", text)[:80]


def _parse_json(content: bytes, source: str) -> Mapping[str, Any]:
    try:
        values = json.loads(content, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ProfileError(
            f"{source}: no JSON that can be read: {reason}.", "Restore it from its origin, or move it away."
        ) from None
    if not isinstance(values, dict):
        raise ProfileError(f"{source}: JSON, but no profile.", "Move it out of the profiles folder.")
    return values


def _without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)[:64]!r} appears twice")
    return values


def _check_version(values: Mapping[str, Any], source: str) -> None:
    version = values.get("schema_version")
    if version == SCHEMA_VERSION and type(version) is int:
        return
    if version is None:
        raise ProfileError(f"{source}: it has no schema_version.", "It is no profile: move it elsewhere.")
    newer = type(version) is int and version > SCHEMA_VERSION
    raise ProfileError(
        f"{source}: schema_version is {str(version)[:20]!r}, this autotune reads {SCHEMA_VERSION}.",
        "Update autotune to read it, or probe again." if newer else "Probe again to make a new one.",
    )


def _explain(error: ValidationError, source: str) -> ProfileError:
    """The ProfileError for the first key that breaks the schema, with its value and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    keys = [str(part)[:64] for part in first["loc"] if str(part)[:1] not in "<["]  # kinds and markers
    value = repr(first["input"]) if keys else "the profile"
    shown = value if len(value) <= 80 else f"{value[:80]}..."
    subject = f"{'.'.join(keys)} = {shown}" if keys else shown
    return ProfileError(
        f"{source}: {subject}: {first['msg'].removeprefix('Value error, ')}.",
        "A profile holds only what its schema names (profiles/schema-v1.json).",
    )
