"""Exports the class of async engines to the store. This is a separate module because the import is slow."""

from sqlalchemy.ext.asyncio import AsyncEngine as AsyncEngine  # noqa: PLC0414
