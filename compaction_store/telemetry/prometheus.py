"""Counts in memory what a `Telemetry` reports, and writes it in the text format of Prometheus.

The names are those that OpenTelemetry's exporter for Prometheus makes, so that rules and dashboards fit both.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from compaction_store.module_data import ModuleData

#: A name without its prefix, the labels and the value.
Gauge = tuple[str, Mapping[str, object], float]
#: The help texts of the gauges, by their names without the prefix.
GAUGES: dict[str, str] = ModuleData(__file__).values["gauges"]
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Registry:
    """A provider of meters for a `Telemetry`, and the meter itself."""

    def __init__(self) -> None:
        self._made: dict[str, _Instrument] = {}

    def get_meter(self, *_: object) -> Registry:
        return self

    def create_counter(self, name: str, unit: str, description: str) -> _Instrument:  # noqa: ARG002 — no part of the name
        return self._made.setdefault(name, _Instrument(f"{name}_total", "counter", description))

    def create_histogram(
        self, name: str, unit: str, description: str, explicit_bucket_boundaries_advisory: Sequence[float]
    ) -> _Instrument:
        name += "_seconds" * (unit == "s")
        made = _Instrument(name, "histogram", description, explicit_bucket_boundaries_advisory)
        return self._made.setdefault(name, made)

    def text(self, gauges: Iterable[Gauge] = ()) -> str:
        """Returns all metrics, with these gauges."""
        found: dict[str, _Instrument] = {}
        for name, labels, value in gauges:
            found.setdefault(name, _Instrument(f"compaction_store_{name}", "gauge", GAUGES[name])).add(value, labels)
        return "".join(each.text() for each in (*self._made.values(), *found.values()))


class _Instrument:
    """The samples of a counter, a histogram or a gauge, by their names with the labels, as they are written."""

    def __init__(self, name: str, kind: str, description: str, bounds: Sequence[float] = ()) -> None:
        self._name = name = name.replace(".", "_")
        self._head = f"# HELP {name} {description}\n# TYPE {name} {kind}\n"
        self._bounds = [*map(float, bounds), float("inf")]
        self._lock = threading.Lock()
        self._samples: dict[str, float] = defaultdict(int)

    def add(self, value: float, labels: Mapping[str, object] | None = None) -> None:
        with self._lock:
            self._samples[_written(self._name, labels or {})] += value

    def record(self, value: float, labels: Mapping[str, object]) -> None:
        with self._lock:
            for bound in self._bounds:
                le = {"le": "+Inf" if bound == self._bounds[-1] else bound}
                self._samples[_written(f"{self._name}_bucket", {**labels, **le})] += value <= bound
            self._samples[_written(f"{self._name}_sum", labels)] += value
            self._samples[_written(f"{self._name}_count", labels)] += 1

    def text(self) -> str:
        with self._lock:
            return self._head + "".join(f"{sample} {value}\n" for sample, value in self._samples.items())


def _written(name: str, labels: Mapping[str, object]) -> str:
    named = (f'{label.replace(".", "_")}="{str(text).translate(_ESCAPES)}"' for label, text in labels.items())
    return f"{name}{{{','.join(named)}}}"
