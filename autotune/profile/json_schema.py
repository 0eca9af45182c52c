"""The JSON schema of profiles, for other tools. `python -m autotune.profile.json_schema` prints it.

Owns the export only: the schema itself is schema.py's. `profiles/schema-v1.json` holds the printed text.
"""

import json
import sys

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from autotune.profile.schema import MAX_PROFILE_BYTES, SCHEMA_VERSION, Profile


def schema_text() -> str:
    """The JSON schema (draft 2020-12) as text, keys sorted, with a final newline."""
    schema = Profile.model_json_schema(schema_generator=_AnyOf) | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"autotune profile, schema version {SCHEMA_VERSION}",
        "$comment": f"A profile file has at most {MAX_PROFILE_BYTES} bytes.",
    }
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


class _AnyOf(GenerateJsonSchema):
    """Says `anyOf` for a choice by kind: to JSON Schema an integer is a number too, so `oneOf` refuses it."""

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        choice = super().tagged_union_schema(schema)
        return {("anyOf" if key == "oneOf" else key): value for key, value in choice.items()}


if __name__ == "__main__":
    sys.stdout.write(schema_text())
