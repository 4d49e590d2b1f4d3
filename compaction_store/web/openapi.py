"""Makes the OpenAPI document from the routes."""

from __future__ import annotations

import re
from functools import cache
from inspect import getdoc
from types import NoneType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from compaction_store import __version__
from compaction_store.web.routes import ROUTES, Route, answer, asked

_NAMES = re.compile(r"{(\w+)}")
_ABOUT = "A persistent conversation store with auditable compaction records."


class Error(BaseModel):
    """The answer to a request that was refused. `type` does not change; `message` is for people, and has no content."""

    type: str
    message: str


@cache
def document() -> dict[str, Any]:
    """Returns the OpenAPI document."""
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(Error, "serialization")]
    models += [(asked(route), "validation") for route in ROUTES if route.method == "POST"]
    models += [(answer(route), "serialization") for route in ROUTES]
    names, made = models_json_schema(models, ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, names)
    return {
        "openapi": "3.1.0",
        "info": {"title": "compaction-store", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": _without_titles(made["$defs"]),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, names: Any) -> dict[str, Any]:
    def content(model: type[BaseModel], mode: JsonSchemaMode = "serialization") -> Any:
        return {"application/json": {"schema": names[model, mode]}}

    kinds = {"thread_id": "string", "seq": "integer", "number": "integer"}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": kinds[name]}}
        for name in _NAMES.findall(route.path)
    ]
    found: dict[str, Any] = {"operationId": route.name}
    limits = f"The answer takes at most {route.deadline:g} seconds"
    if route.method == "POST":
        limits += f", and the body has at most {route.most_bytes:,} bytes"
        found["requestBody"] = {"required": True, "content": content(asked(route), "validation")}
    else:
        query = _without_titles(asked(route).model_json_schema())
        parameters += [
            {"name": name, "in": "query", "required": name in query.get("required", ()), "schema": schema}
            for name, schema in query["properties"].items()
        ]
    # The rest of a docstring is about Python.
    about = " ".join((getdoc(route.call) or "").partition("\n\n")[0].split())
    return {
        **found,
        "summary": about.partition(". ")[0].removesuffix("."),
        "description": f"{about} {limits}.",
        "parameters": parameters,
        "security": [] if route.rights is None else [{"token": []}],
        "responses": {
            str(route.made): {"description": "Done.", "content": content(answer(route))},
            "default": {"description": "The request was refused.", "content": content(Error)},
        },
    }


def _without_titles(schema: Any) -> Any:
    """Returns a schema without what only says that pydantic made it: titles from names, and the default null."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = {name for name, value in (("title", str), ("default", NoneType)) if isinstance(schema.get(name), value)}
    return {name: _without_titles(part) for name, part in schema.items() if name not in left_out}
