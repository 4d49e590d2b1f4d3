"""The commands `append` and `turn`."""

from __future__ import annotations

import subprocess
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from compaction_store.cli import options, values
from compaction_store.cli.bundles import argument, misuse, option
from compaction_store.cli.options import ReadOptions, TenantOptions, Thread
from compaction_store.cli.output import Output, note
from compaction_store.errors import BatchTooLarge, InvalidMessage

if TYPE_CHECKING:
    from compaction_store import Appended

_NOTHING = "the input must have at least one message; nothing was appended"


def append(
    thread: Thread,
    file: Path | None = argument("[FILE]", default=None),
    key: str | None = option("--key KEY", default=None),
    expected_seq: int | None = option("--expected-seq SEQ", default=None, min=0),
    expected_head: str | None = option("--expected-head HEX", default=None),
    meta: str | None = option("--meta JSON", default=None),
    not_durable: bool = option("--not-durable", default=False),
    each: bool = option("--each", default=False),
    raw: bool = option("--raw", default=False),
    subject: options.Subject = None,
    actor: options.Actor = None,
    *,
    call: ReadOptions,
) -> None:
    if each and any(given is not None for given in (key, expected_seq, expected_head)):
        raise misuse("must not be given with --key, --expected-seq or --expected-head", "--each")
    if file is None and sys.stdin.isatty():
        note("reading messages from the terminal; end with Ctrl-D")
    out = call.output()
    extra = options.json_object(meta, "--meta")
    head = options.head(expected_head, "--expected-head")
    given: dict[str, Any] = {"actor": actor, "subject": subject, "durable": not not_durable, "raw": raw}
    with _open(file) as stream, call.store() as store:
        if each:
            for number, line in _lines(stream):
                message = _parsed(line, number)
                _show(out, store.append(thread, message, meta=extra, **given))
            return
        messages = _messages(stream)
        if not messages:
            raise InvalidMessage(_NOTHING)
        written = store.append(
            thread, messages, key=key, expected_seq=expected_seq, expected_head=head, meta=extra, **given
        )
        _show(out, written)


def _open(file: Path | None) -> IO[bytes]:
    if file is None or str(file) == "-":
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise misuse(f"cannot read {file}: {error.strerror}", "FILE") from None


def _lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield number, line


def _messages(stream: IO[bytes]) -> list[Any]:
    """Reads one JSON text, or else JSON lines. Errors name the line and quote nothing."""
    from compaction_store.messages import encoding

    # Twice the limit of one append, because JSON may be written with spaces and escapes.
    most_bytes = 2 * encoding.MAX_BATCH_BYTES
    text = stream.read(most_bytes + 1)
    if len(text) > most_bytes:
        raise BatchTooLarge(f"the input must have at most {most_bytes:,} bytes: use import or --each")
    try:
        whole = _json(text)
    except ValueError:
        return [_parsed(line, number) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return whole if isinstance(whole, list) else [whole]


def _parsed(line: bytes, number: int) -> Any:
    from compaction_store.importers.line_files import Unreadable

    try:
        return _json(line)
    except Unreadable as error:
        why = str(error).removeprefix("it is not JSON: ")
    raise InvalidMessage(f"line {number:,} must be JSON: {why}")


def _json(text: bytes) -> Any:
    from compaction_store.importers.line_files import parsed

    return parsed(text.removeprefix(BOM_UTF8))


def _show(out: Output, written: Appended) -> None:
    if out.as_json:
        for message in written:
            out.json({
                "seq": message.seq, "pos": message.pos, "role": message.role, "tokens": message.tokens,
                "created_at": message.created_at, "head": written.head, "durable": written.durable,
            })  # fmt: skip
    else:
        first, last = written[0].seq, written[-1].seq
        tokens = sum(message.tokens for message in written)
        out.text(
            f"appended seq{'s' * (first < last)} {values.span(first, last)}: {tokens:,} tokens"
            + ", not yet durable" * (not written.durable)
        )


# If a signal ended the command, the exit code is this plus the number of the signal, as in a shell.
_SIGNALLED = 128


def turn(
    thread: Thread,
    command: Annotated[list[str], argument("COMMAND...", "The command and its arguments.")],
    wait: float = option("--wait SECONDS", default=60.0, min=0),
    lease: float = option("--lease SECONDS", default=30.0, min=1),
    actor: str | None = option("--actor NAME", default=None, show_default="user@host"),
    *,
    db: TenantOptions,
) -> None:
    with db.store() as store, store.turn(thread, wait=wait, lease=lease, actor=actor):
        try:
            code = subprocess.run(command, check=False).returncode  # noqa: S603 — it is what the user asked for
        except OSError as error:
            raise misuse(f"cannot run the command: {error.strerror}", "COMMAND") from None
    raise typer.Exit(code if code >= 0 else _SIGNALLED - code)
