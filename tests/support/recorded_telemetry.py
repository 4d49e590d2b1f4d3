"""Records in memory the spans and metrics that a store reports to OpenTelemetry."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from compaction_store import Telemetry


class RecordedTelemetry:
    def __init__(self, **options: Any) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracer_provider = TracerProvider(shutdown_on_exit=False)
        tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(tracer_provider=tracer_provider, meter_provider=meter_provider, **options)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """Returns the finished spans in the order in which they ended."""
        return self._spans.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def under(self, parent: ReadableSpan) -> list[str]:
        """Returns the names of the spans inside a span."""
        return [s.name for s in self.spans if s.parent is not None and s.parent.span_id == parent.context.span_id]

    def points(self, metric: str) -> list[tuple[dict[str, Any], float]]:
        """Returns the labels of each point of a metric, with the value of a counter or the sum of a histogram."""
        data: Any = self._reader.get_metrics_data()
        found = [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
        ]
        return [(dict(point.attributes or {}), getattr(point, "sum", None) or point.value) for point in found]

    def everything(self) -> str:
        """Returns all spans and metrics as text."""
        metrics = self._reader.get_metrics_data()
        return json.dumps([span.to_json() for span in self.spans]) + ("" if metrics is None else metrics.to_json())
