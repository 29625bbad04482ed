"""What the server's answers look like, for the OpenAPI page; they are built as plain dictionaries."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Share(_Part):
    """A class or domain with its probability."""

    name: str
    probability: float = Field(ge=0, le=1.0001)


class Prototype(_Part):
    """A prototype near the image."""

    label: str = Field(description="its class")
    domain: str
    distance: float = Field(description="squared, in units of the prototypes' mean squared distance")
    example: str | None = Field(description="where the training image nearest to it is, with --examples")


class Prediction(_Part):
    """What the model says of one image; of one that could not be read, only name and error."""

    name: str = Field(description="file name, or place in the request counted from 1")
    error: str | None = Field(description="why the image could not be read")
    label: str | None = None
    confidence: float | None = Field(None, ge=0, le=1.0001)
    classes: list[Share] = Field([], description="the most probable classes")
    nearest_source: str | None = None
    domains: list[Share] = Field([], description="which domain the image leans on")
    prototypes: list[Prototype] = Field([], description="the nearest ones")


class Predictions(_Part):
    """An answer for each image, in their order."""

    predictions: list[Prediction]


class Problem(_Part):
    """Why a request was refused, in one sentence."""

    error: str


class Health(_Part):
    """That the server works."""

    status: str
    graphmsda: str


class Model(_Part):
    """What is served, and what the server takes at most."""

    run: str
    method: str
    backbone: str
    classes: list[str]
    domains: list[str]
    image_size: int
    examples: bool
    limits: dict[str, float]


BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {
                    "images": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "format": "binary"},
                        "description": "JPEG, PNG, WebP, BMP, TIFF, GIF or PPM files; the field may have any name",
                    }
                },
                "required": ["images"],
            }
        },
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {
                    "images": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "contentEncoding": "base64"},
                        "description": "the files in base64; data: URLs are taken too",
                    }
                },
                "required": ["images"],
                "additionalProperties": False,
            }
        },
    },
}

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "the body cannot be parsed",
        408: "the body came too slowly",
        413: "the body or the number of images is too large",
        415: "neither a form nor JSON",
        422: "no image could be read",
        503: "too many requests at work, or the answer took too long; try again",
    }.items()
}
