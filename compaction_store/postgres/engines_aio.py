"""The class of asynchronous engines, for the store. It is in a module of its own because importing it takes long."""

from sqlalchemy.ext.asyncio import AsyncEngine as AsyncEngine  # noqa: PLC0414
