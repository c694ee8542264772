"""`secrets:` of train.yaml."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from runner.core.secrets import SecretRef, check_secret


class SecretFile(BaseModel):
    """Where a secret's value is: one of env and keyvault."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        json_schema_extra={
            "oneOf": cast("Any", [{"required": ["env"]}, {"required": ["keyvault"]}])
        },
    )

    env: str | None = Field(None, description="A variable of the machine that submits.")
    keyvault: str | None = Field(
        None, description="https://VAULT.vault.azure.net/secrets/NAME, read by the node's identity."
    )


def _checked(value: dict[str, SecretFile]) -> dict[str, SecretFile]:
    for name, file in value.items():
        try:
            check_secret(SecretRef(name, file.env, file.keyvault))
        except ValueError as err:
            # Whatever was written there may be the value itself: it is not repeated.
            problem = {"problem": f"{name}: {err}", "fix": "NAME: {env: NAME}"}
            raise PydanticCustomError("runner", "{problem}", problem) from None
    return value


def _reference(value: object) -> object:
    if isinstance(value, dict):
        sources = cast("dict[object, object]", value)
        if all(isinstance(source, str) for source in sources.values()):
            return sources
    # Whoever writes a value here must not find it in an error message.
    problem = {"problem": "a secret is a reference, never a value", "fix": "{env: NAME}"}
    raise PydanticCustomError("runner", "{problem}", problem)


Secrets = Annotated[
    dict[str, Annotated[SecretFile, BeforeValidator(_reference)]], AfterValidator(_checked)
]


def to_secrets(secrets: dict[str, SecretFile]) -> tuple[SecretRef, ...]:
    """The recipe's secrets."""
    return tuple(SecretRef(name, file.env, file.keyvault) for name, file in secrets.items())
