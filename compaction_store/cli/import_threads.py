"""The command `import`, which reads bundles, and the files and databases of other programs.

The same command continues an interrupted import. After a complete import, it adds only new messages.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import compaction_store
from compaction_store.audit.safe_text import named
from compaction_store.cli import export
from compaction_store.cli.bundles import NO_DATABASE, REFUSED, argument, exit_code, misuse, option
from compaction_store.cli.choices import value
from compaction_store.cli.options import PrintOptions, ServerOptions
from compaction_store.cli.output import Output, ProgressBar, note
from compaction_store.errors import CompactionStoreError, InvalidBundle

if TYPE_CHECKING:
    from compaction_store import Store
    from compaction_store.importers import ThreadImported

_BUNDLES = "bundle"
# The format of bundles, and the formats in `importers.FORMATS`.
FORMATS = (
    _BUNDLES, "openai-agents", "anthropic", "chatgpt", "claude-ai", "claude-code", "codex", "langgraph", "openai-chat",
    "openai-responses",
)  # fmt: skip


def import_(
    sources: Annotated[list[str], argument("SOURCES...", "Files, folders, or the URL of another program's database.")],
    form: str | None = option(
        "--format NAME", f"{', '.join(FORMATS)}. [default: detected]", None, autocompletion=lambda: list(FORMATS)
    ),
    thread: str | None = option("--thread NAME", default=None),
    prefix: str | None = option("--prefix TEXT", default=None, show_default="the format and a colon"),
    only: list[str] | None = option("--only ID", default=None),
    skip_bad: bool = option("--skip-bad", default=False),
    adopt: bool = option("--adopt", default=False),
    thread_field: str | None = option("--thread-field NAME", default=None),
    option: list[str] | None = option("--option NAME=VALUE", default=None),
    *,
    db: ServerOptions,
    tenant: str | None = option("--tenant NAME", default=None, show_default="default"),
    all_tenants: bool = option("--all-tenants", default=False),
    printed: PrintOptions,
) -> None:
    if form is not None and form not in FORMATS:
        raise misuse(f"must be one of {', '.join(FORMATS)}, not {form!r}", "--format")
    if all_tenants and tenant is not None:
        raise misuse("give either --tenant or --all-tenants", "--all-tenants")
    how = {"thread_id": thread, "prefix": prefix, "only": only or None, "skip_bad": skip_bad, "adopt": adopt}
    how |= _options(option)
    if thread_field is not None:
        how["thread_field"] = thread_field
    with db.reachable() as address, ExitStack() as stack, ProgressBar("import", "entries") as progress:
        run = _ImportRun(address, tenant or "default", all_tenants, printed.output(), progress, stack)
        for source in sources:
            run.take(source, form, how)
    if run.code:
        raise typer.Exit(run.code)


def _options(given: list[str] | None) -> dict[str, Any]:
    parts = [text.partition("=") for text in given or ()]
    for name, equals, _ in parts:
        if not equals or not name.isidentifier():
            raise misuse(f"must be NAME=VALUE, not {name!r}", "--option")
    return {name: value(text) for name, _, text in parts}


@dataclass
class _ImportRun:
    """The state of an import: a store for each tenant, and the exit code so far."""

    address: str
    tenant: str
    all_tenants: bool
    out: Output
    progress: ProgressBar
    stack: ExitStack
    code: int = 0
    _stores: dict[str, Store] = field(default_factory=dict)

    def take(self, source: str, form: str | None, how: dict[str, Any]) -> None:
        from compaction_store import importers

        path = Path(source)
        files = export.found_in(path) if form in (None, _BUNDLES) and path.exists() else []
        if files:
            for file in files:
                self._bundle(file, alone=len(files) == 1)
        elif form == _BUNDLES:
            raise misuse(f"{source} contains no bundle", "SOURCES")
        elif "://" not in source and not path.exists():
            raise misuse(f"file {source} does not exist", "SOURCES")
        else:
            store = self._store(self.tenant)
            for thread in importers.import_into(store, source, format=form, progress=self.progress.imported, **how):
                self._show(source, thread)

    def _store(self, tenant: str) -> Store:
        if tenant not in self._stores:
            opening = compaction_store.Store.open(self.address, tenant=tenant, pool_size=2)
            self._stores[tenant] = self.stack.enter_context(opening)
        return self._stores[tenant]

    def _bundle(self, file: Path, *, alone: bool) -> None:
        try:
            try:
                tenant = export.tenant_of(file)
                if not self.all_tenants and tenant != self.tenant:
                    # The file must not choose the tenant that it gets into.
                    raise InvalidBundle(f"the bundle is of another tenant: give --tenant {shlex.quote(tenant)}")
                with file.open("rb") as stream:
                    done = self._store(tenant).load.bundle(self.progress.over(stream))
            except OSError as error:
                raise InvalidBundle(f"cannot read {file}: {error.strerror}") from None
        except CompactionStoreError as error:
            # If one of several bundles is refused, continue with the others.
            if alone or exit_code(error) == NO_DATABASE:
                raise
            note(f"compaction-store: {file}: {error}")
            self.code = self.code or exit_code(error)
            return
        if self.out.as_json:
            self.out.json({
                "source": str(file), "format": _BUNDLES, "tenant": tenant, "thread_id": done.thread_id,
                "added": done.last_seq if done.added else 0, "last_seq": done.last_seq, "last_pos": done.last_pos,
                "head": done.head,
            })  # fmt: skip
        else:
            what = "imported" if done.added else "already imported"
            self.out.text(f"{named(done.thread_id)}: {what}: {done.last_seq:,} messages, {done.last_pos:,} entries")

    def _show(self, source: str, thread: ThreadImported) -> None:
        loaded, refused = thread.loaded, thread.refused
        if thread.hint is not None:
            note(f"compaction-store: {thread.hint.replace('give thread_field', 'give --thread-field')}")
        for bad in thread.bad:
            place = "" if bad.line is None else f" (line {bad.line:,})"
            note(f"compaction-store: skipped: {bad.where}{place}: {bad.why}")
        for text in thread.not_known():
            note(f"compaction-store: {named(thread.thread_id)}: {text}")
        if refused is not None:
            note(f"compaction-store: {refused}")
        if refused is not None or not thread.is_recognised:
            self.code = self.code or REFUSED
        if self.out.as_json:
            self.out.json({
                "source": _named(source), "format": thread.format, "tenant": self.tenant,
                "thread_id": thread.thread_id, "source_id": thread.source_id,
                "added": 0 if loaded is None else loaded.added, "messages": 0 if loaded is None else loaded.count,
                "last_seq": None if loaded is None else loaded.last_seq, "skipped": thread.skipped,
                "left_out": {name: found.as_dict() for name, found in thread.left_out.items()},
                "unknown": dict(thread.unknown), "is_recognised": thread.is_recognised,
                "refused": None if refused is None else type(refused).__name__,
            })  # fmt: skip
        elif refused is None:
            result = "no messages" if loaded is None else f"{loaded.count:,} messages, {loaded.added:,} new"
            skipped = f", {thread.skipped:,} skipped" if thread.skipped else ""
            self.out.text(f"{named(thread.thread_id)}: {result}{skipped}")


def _named(source: str) -> str:
    """Returns a source for printing, without the user and password of a URL."""
    scheme, mark, rest = source.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else source
