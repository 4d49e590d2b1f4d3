"""Spans and metrics for OpenTelemetry: of a store's operations, of its statements, and of the calls of models in them.

Spans begin and end in one place here. What is told of each is in `conventions`: never what a message, a summary or a
prompt says, unless `content=True` asks for it, and then only on the spans of models' calls. Of an error its type is
told, and its text where it is one of ours, which repeats no content. A store without a `Telemetry` imports nothing of
OpenTelemetry, and runs no line of this.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from compaction_store.errors import Conflict, InvalidInput, MissingExtra, own_text
from compaction_store.telemetry import conventions
from compaction_store.telemetry.conventions import Attributes

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

_NAME = "compaction_store"
_SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"

# Whom the calls of models are told, and the thread they are for: set around every operation of a store.
Observer = Callable[[str], AbstractContextManager["Step"]]
_current: ContextVar[tuple[Telemetry, Attributes] | None] = ContextVar("compaction_store.telemetry", default=None)


class Step:
    """A span that is open, and the labels that its measurements will have."""

    def __init__(self, telemetry: Telemetry, span: Span, labels: Attributes) -> None:
        self._telemetry = telemetry
        self._span = span
        self._retries = 0
        self.labels = labels

    def tell(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def failed(self, error: BaseException) -> None:
        self.broke(conventions.about(error), own_text(error))

    def broke(self, about: Attributes, text: str | None = None) -> None:
        """Marks the span as failed; the text is ours, or none."""
        self.labels |= about
        self._span.set_attributes(about)
        self._span.set_status(self._telemetry.error, text)

    def retried(self, sqlstate: str | None) -> None:
        """Records that the statement failed, with this SQLSTATE or without an answer, and is sent again."""
        self._retries += 1
        about: Attributes = {} if sqlstate is None else {"db.response.status_code": sqlstate}
        self._span.add_event("compaction_store.retry", about)
        self._span.set_attribute("compaction_store.retries", self._retries)
        summary = self.labels["db.query.summary"]
        self._telemetry.retries.add(1, {"db.query.summary": summary, **about})


class Telemetry:
    """Given to `open`, it has the store tell of itself. Without providers, OpenTelemetry's global ones are used.

    `content=True` puts what is sent to a model and what it answers on the spans of its calls: whole conversations, in
    the clear, wherever the spans go.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool = False,
    ) -> None:
        try:
            from opentelemetry import metrics, trace  # noqa: PLC0415 — an extra
        except ImportError:
            raise MissingExtra("Telemetry", "otel") from None
        if type(content) is not bool:
            raise InvalidInput("content must be True or False")
        self._content = content
        self._kinds = trace.SpanKind
        self.error = trace.StatusCode.ERROR
        self._tracer = trace.get_tracer(_NAME, version("compaction-store"), tracer_provider, _SCHEMA_URL)
        meter = metrics.get_meter(_NAME, version("compaction-store"), meter_provider, _SCHEMA_URL)

        def histogram(name: str, unit: str, what: str, boundaries: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(name, unit, what, explicit_bucket_boundaries_advisory=boundaries)

        self._operations = histogram(
            "compaction_store.operation.duration", "s", "Duration of a store's operations.",
            conventions.DATABASE_SECONDS,
        )  # fmt: skip
        self._statements = histogram(
            "db.client.operation.duration", "s", "Duration of database client operations.",
            conventions.DATABASE_SECONDS,
        )  # fmt: skip
        self._calls = histogram(
            "gen_ai.client.operation.duration", "s", "GenAI operation duration.", conventions.MODEL_SECONDS
        )
        self._usage = histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", conventions.TOKENS
        )
        self._tokens = histogram(
            "compaction_store.compact.tokens", "{token}", "Tokens of a view before a compaction and after it.",
            conventions.TOKENS,
        )  # fmt: skip
        self._messages = meter.create_counter("compaction_store.messages", "{message}", "Messages appended.")
        self._records = meter.create_counter("compaction_store.compactions", "{record}", "Compaction records.")
        self._conflicts = meter.create_counter("compaction_store.conflicts", "{conflict}", "Writes refused.")
        #: Counted by an open step.
        self.retries = meter.create_counter("compaction_store.retries", "{retry}", "Statements sent again.")

    @contextmanager
    def _step(
        self, name: str, kind: Any, labels: Attributes, attributes: Attributes, duration: Histogram
    ) -> Iterator[Step]:
        """The one place where spans begin and end, and where durations are taken."""
        start = time.perf_counter()
        # What OpenTelemetry would record of an exception by itself may quote anything.
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes={**labels, **attributes}, record_exception=False, set_status_on_exception=False
        ) as span:
            step = Step(self, span, dict(labels))
            try:
                yield step
            except BaseException as error:
                step.failed(error)
                raise
            finally:
                duration.record(time.perf_counter() - start, step.labels)

    # ---- operations of a store

    def watch(self, store: object, tenant: str) -> None:
        """Has a store's operations told from now on: each instance for itself, so that others pay nothing."""
        for name in conventions.OPERATIONS:
            if (method := getattr(store, name, None)) is not None:
                setattr(store, name, self._told(name, method, tenant))

    def _told(self, name: str, method: Callable[..., Any], tenant: str) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def awaited(*arguments: Any, **keywords: Any) -> Any:
                with self._operation(name, tenant, arguments, keywords) as step:
                    result = await method(*arguments, **keywords)
                    self._came_of(step, name, result)
                    return result

            return awaited

        @functools.wraps(method)
        def called(*arguments: Any, **keywords: Any) -> Any:
            with self._operation(name, tenant, arguments, keywords) as step:
                result = method(*arguments, **keywords)
                self._came_of(step, name, result)
                return result

        return called

    @contextmanager
    def _operation(
        self, name: str, tenant: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Iterator[Step]:
        given = arguments[0] if arguments else keywords.get("thread_id")
        thread_id = given if isinstance(given, str) else getattr(given, "thread_id", None)
        thread: Attributes = {}
        if isinstance(thread_id, str):
            thread["gen_ai.conversation.id"] = conventions.plain(thread_id)
        labels: Attributes = {"compaction_store.operation": name}
        attributes: Attributes = {"compaction_store.tenant": conventions.plain(tenant), **thread}
        token = _current.set((self, thread))
        try:
            kind = self._kinds.INTERNAL
            with self._step(f"compaction_store.{name}", kind, labels, attributes, self._operations) as step:
                yield step
        finally:
            _current.reset(token)

    def _came_of(self, step: Step, name: str, result: Any) -> None:
        step.tell(conventions.result(name, result))
        if name == "append":
            self._messages.add(len(result))
        elif name == "compact":
            for (outcome, kind), count in conventions.outcomes(result).items():
                self._records.add(count, {"compaction_store.outcome": outcome, "compaction_store.kind": kind})
            for side, tokens in zip(("before", "after"), conventions.saved(result) or (), strict=False):
                self._tokens.record(tokens, {"compaction_store.side": side})

    # ---- statements

    def observer(self, host: str | None, port: int | None, database: str | None) -> Observer:
        """Returns a function that opens the span of a query on this server, around all its attempts."""
        server = conventions.server(host, port, database)
        return functools.partial(self._statement, server)

    @contextmanager
    def _statement(self, server: Attributes, name: str) -> Iterator[Step]:
        summary = f"SELECT compaction_store.{name}"
        labels: Attributes = {"db.system.name": "postgresql", "db.query.summary": summary, **server}
        with self._step(summary, self._kinds.CLIENT, labels, {}, self._statements) as step:
            try:
                yield step
            except Conflict as error:
                self._conflicts.add(1, {"db.query.summary": summary, **conventions.about(error)})
                raise

    # ---- calls of models

    @contextmanager
    def _call(self, client: Any, parameters: Mapping[str, Any], thread: Attributes) -> Iterator[Callable[[Any], Any]]:
        labels = conventions.asked(client, parameters)
        attributes = {**thread, **conventions.settings(parameters)}
        if self._content:
            attributes |= conventions.said(parameters)
        name = " ".join(str(labels[key]) for key in ("gen_ai.operation.name", "gen_ai.request.model") if key in labels)
        with self._step(name, self._kinds.CLIENT, labels, attributes, self._calls) as step:
            yield functools.partial(self._answered, step)

    def _answered(self, step: Step, answer: Any) -> Any:
        """Tells of an answer, or of the exception that came in its place, and hands it on."""
        if isinstance(answer, Exception):
            step.broke({"error.type": conventions.refused(answer)})
            return answer
        whole: Mapping[str, Any] = answer.to_dict(mode="json", warnings=False)
        told = conventions.answered(whole)
        if (model := told.get("gen_ai.response.model")) is not None:
            step.labels["gen_ai.response.model"] = model
        for kind, count in conventions.used(whole).items():
            told[f"gen_ai.usage.{kind}_tokens"] = count
            self._usage.record(count, {**step.labels, "gen_ai.token.type": kind})
        if self._content:
            told |= conventions.answered_with(whole)
        step.tell(told)
        return answer


def model_call(client: Any, parameters: Mapping[str, Any]) -> AbstractContextManager[Callable[[Any], Any]]:
    """Around a request to a model: what it gives is to be handed the answer, or the exception. Nothing outside a store
    that tells of itself.
    """
    current = _current.get()
    if current is None:
        return _untold()
    telemetry, thread = current
    return telemetry._call(client, parameters, thread)  # noqa: SLF001 — of this module


@contextmanager
def _untold() -> Iterator[Callable[[Any], Any]]:
    yield lambda answer: answer
