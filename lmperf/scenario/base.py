"""What every part of the scenario model has in common: unknown keys are faults, values are not bent to fit (``"20"`` is
not 20, ``true`` is not 1), and a part may have a short form.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
MAX_SECONDS = 30 * 86_400
"""Of any time in a scenario: 30 days. A larger one is a slip of units, and planning it would take as long as it sounds."""
MAX_RATE = 1_000_000
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
SecondsOrZero = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Milliseconds = Annotated[float, Field(gt=0, le=MAX_SECONDS * 1000)]
MillisecondsOrZero = Annotated[float, Field(ge=0, le=MAX_SECONDS * 1000)]
Rate = Annotated[float, Field(gt=0, le=MAX_RATE)]
Share = Annotated[float, Field(gt=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """A mapping of a scenario. ``short_schema`` is the JSON Schema of its short form, where it has one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())

    short_schema: ClassVar[dict[str, Any] | None] = None

    @classmethod
    def expand(cls, value: object) -> object:
        """The long form of a short one; anything else comes back as it is, and validation tells what is wrong."""
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.short_schema is None or "anyOf" in schema:
            return schema
        long_form = dict(schema)
        about = {key: long_form.pop(key) for key in ("title", "description") if key in long_form}
        return about | {"anyOf": [cls.short_schema, long_form]}
