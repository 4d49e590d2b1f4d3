"""Threads out of a store and into another: bundles, which prove themselves without either.

A folder of bundles is a whole store. Written again to the same folder, only the threads that have changed are; read
again, nothing is added. So both can be cut off and repeated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from compaction_store import Reader, Store, bundle, chain, diagnosis, erasure
from compaction_store import Thread as ThreadValue
from compaction_store.cli import exits
from compaction_store.cli.deploying import reached
from compaction_store.cli.options import AsJson, Tenant, Url, misuse
from compaction_store.cli.output import Output, Progress, note
from compaction_store.errors import CompactionStoreError, Conflict, InvalidBundle

_SUFFIX = ".jsonl"
# Withheld content is another bundle of the same thread.
_WITHHELD = ".withheld.jsonl"
_END_BYTES = 4096
_LONGEST_MANIFEST = 1024 * 1024


def export(
    threads: Annotated[
        list[str] | None, typer.Argument(metavar="[THREADS]...", help="Which; or --all.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every thread of the tenant.")] = False,
    every_tenant: Annotated[
        bool, typer.Option("--all-tenants", help="Every thread of every tenant; for a superuser.")
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="A file for each thread; else stdout.", show_default=False),
    ] = None,
    no_bodies: Annotated[
        bool,
        typer.Option("--no-bodies", help="Withhold all content. What is left still verifies, but is not imported."),
    ] = False,
    url: Url = None,
    tenant: Tenant = "default",
) -> None:
    """Writes threads as bundles: everything that is stored of them, with the means to check it offline.

    A bundle is checked by python -m compaction_store.offline FILE, which needs nothing else of this package. Threads
    that stand in the folder as they are now are not written again.
    """
    if sum((bool(threads), every, every_tenant)) != 1:
        raise misuse("name threads, or say --all or --all-tenants", "THREADS")
    if to is None and len(threads or ()) != 1:
        raise misuse("is needed for several threads", "--to")
    with reached(url) as address, Progress("export", "entries") as progress:
        for name in diagnosis.tenants(address) if every_tenant else [tenant]:
            with Reader.open(address, tenant=name) as store:
                if to is None:
                    for thread in threads or ():
                        _write(sys.stdout.buffer, progress.over(store.export(thread, bodies=not no_bodies)))
                    continue
                _export_all(store, name, threads, to, progress, bodies=not no_bodies)


def _export_all(
    store: Reader, tenant: str, threads: list[str] | None, to: Path, progress: Progress, *, bodies: bool
) -> None:
    try:
        to.mkdir(parents=True, exist_ok=True)
        wanted = [store.thread(name) for name in threads] if threads else store.threads()
        for thread in wanted:
            _export_one(store, tenant, thread, to, progress, bodies=bodies)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise misuse(f"cannot write to {to}: {error.strerror}", "--to") from None


def _export_one(store: Reader, tenant: str, thread: ThreadValue, to: Path, progress: Progress, *, bodies: bool) -> None:
    uid = erasure.stub_uid(thread.thread_id) or chain.thread_uid(tenant, thread.thread_id)
    target = to / f"{uid}{_SUFFIX if bodies else _WITHHELD}"
    if _stands_there(target, thread.head):
        progress.advance(thread.last_pos)
        return
    part = target.with_name(f"{target.name}.part")
    for last in (False, True):
        try:
            with part.open("wb") as stream:
                _write(stream, progress.over(store.export(thread.thread_id, bodies=bodies)))
                os.fsync(stream.fileno())
            break
        except Conflict:
            # Something was erased meanwhile: what was written of it must not stay.
            part.unlink()
            if last:
                raise
    part.replace(target)


def _stands_there(file: Path, head: bytes) -> bool:
    """Whether a whole bundle of the thread as it is now is there already."""
    try:
        with file.open("rb") as stream:
            manifest = bundle.parse(stream.readline(_LONGEST_MANIFEST))
            stream.seek(max(0, file.stat().st_size - _END_BYTES))
            end = bundle.parse(stream.read().splitlines(keepends=True)[-1])
    except (OSError, ValueError):
        return False
    is_whole: bool = manifest["type"] == "manifest" and end["type"] == "end" and manifest["head"] == end["head"]
    return is_whole and manifest["head"] == head.hex()


def _write(stream: IO[bytes], lines: Iterable[bytes]) -> None:
    for line in lines:
        stream.write(line)
    stream.flush()


def import_(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCES...", help="Bundles, and folders of bundles.", show_default=False)
    ],
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="NAME", help="Refuse the threads of others.", show_default="the bundle's"),
    ] = None,
    url: Url = None,
    as_json: AsJson = None,
) -> None:
    """Stores the threads of bundles, each as the thread it was, whole or not at all.

    Every bundle is proved before it is stored. A thread that is there already, with the same head, is left as it is.
    """
    out = Output(as_json=as_json)
    files = list(_files(sources))
    code = 0
    with reached(url) as address, ExitStack() as opened, Progress("import", "entries") as progress:
        stores: dict[str, Store] = {}
        for file in files:
            try:
                owner = tenant or _manifest(file)["tenant"]
                if owner not in stores:
                    stores[owner] = opened.enter_context(Store.open(address, tenant=owner, pool_size=2))
                with file.open("rb") as stream:
                    done = stores[owner].import_bundle(progress.over(stream))
            except CompactionStoreError as error:
                # One bundle of many that is refused is no reason to leave the others.
                if len(files) == 1 or exits.of(error) == exits.NO_DATABASE:
                    raise
                note(f"compaction-store: {file}: {error}")
                code = code or exits.of(error)
                continue
            if out.as_json:
                out.json({
                    "file": str(file), "tenant": owner, "thread_id": done.thread_id, "added": done.added,
                    "last_seq": done.last_seq, "last_number": done.last_number, "last_pos": done.last_pos,
                    "head": done.head,
                })  # fmt: skip
            else:
                what = "stored" if done.added else "is there already"
                out.text(f"{done.thread_id}: {what}: {done.last_pos:,} entries, {done.last_seq:,} messages")
    if code:
        raise typer.Exit(code)


def _files(sources: Iterable[Path]) -> Iterator[Path]:
    for source in sources:
        if source.is_dir():
            found = sorted(source.glob(f"*{_SUFFIX}"))
            if not found:
                raise misuse(f"there are no bundles in {source}", "SOURCES")
            yield from found
        elif source.is_file():
            yield source
        else:
            raise misuse(f"there is no file {source}", "SOURCES")


def _manifest(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            found = bundle.parse(stream.readline(_LONGEST_MANIFEST))
    except OSError as error:
        raise misuse(f"cannot read {file}: {error.strerror}", "SOURCES") from None
    except ValueError:
        found = {"type": None}
    if found["type"] != "manifest":
        raise InvalidBundle(f"{file} is no bundle: its first line is no manifest")
    return found
