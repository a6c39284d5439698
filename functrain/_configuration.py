"""Configuration as data: what hooks, statistics and warm-ups have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from functrain._options import explained, refuse_positional, signature_of


class Configuration(BaseModel):
    """Options by name: frozen, compared by value, printable, picklable; what is misspelt is named.

    Raises:
        pydantic.ValidationError: a value out of bounds, of the wrong type, or an unknown option.
        TypeError: an option without its name.

    >>> class Half(Configuration):
    ...     factor: float = 0.5
    >>> Half(factor=0.25)
    Half(factor=0.25)
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    if not TYPE_CHECKING:  # which reads the fields

        def __init__(self, *positional: Any, **options: Any) -> None:
            """Take options by name."""
            refuse_positional(type(self), positional)
            super().__init__(**options)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Give a class the signature that its reader wants, without the checks of each option."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.__signature__ = signature_of(cls)

    @model_validator(mode="wrap")
    @classmethod
    def _known(cls, given: Any, make: ModelWrapValidatorHandler[Self]) -> Self:
        """Say of a misspelt option which there are."""
        try:
            return make(given)
        except ValidationError as error:
            raise explained(cls, error) from None
