"""Reads the text format of Prometheus, and refuses what is not in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import httpx

_NAME, _LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,{_LABEL})*)?)\}})? (\S+)")
_HELP, _TYPE = re.compile(rf"# HELP ({_NAME}) \S.*"), re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram)")


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


class Scrape:
    """The samples of a scrape."""

    def __init__(self, text: str) -> None:
        self.samples: list[Sample] = []
        self.types: dict[str, str] = {}
        seen = set()
        for line in text.splitlines():
            if (kind := _TYPE.fullmatch(line)) is not None:
                assert kind[1] not in self.types, line
                self.types[kind[1]] = kind[2]
            elif line.startswith("#"):
                assert _HELP.fullmatch(line), line
            else:
                found = _SAMPLE.fullmatch(line)
                assert found is not None, line
                labels = dict(re.findall(_LABEL, found[2] or ""))
                family = re.sub("_(bucket|sum|count)$", "", found[1])
                assert family in self.types or found[1] in self.types, line
                key = found[1], tuple(sorted(labels.items()))
                assert key not in seen, line
                seen.add(key)
                self.samples.append(Sample(found[1], labels, float(found[len(found.groups())])))

    def __contains__(self, name: str) -> bool:
        return any(sample.name == name for sample in self.samples)

    def of(self, name: str, **labels: str) -> float:
        """Returns the value of the one sample with this name and these labels, among others."""
        [found] = [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        return found.value


def get(address: str) -> tuple[int, str]:
    answer = httpx.get(address, timeout=30)
    return answer.status_code, answer.text


def scraped(address: str) -> Scrape:
    status, text = get(f"{address}/metrics")
    assert status == 200, text
    return Scrape(text)
