"""What pictures, sounds, files and sealed text are taken to cost: by their size, never by the letters of their base64.

An image has its width times its height over 750 tokens, from 85 to 1,600, and 1,600 where its size does not show; one
of low detail has 85. Sound and film have a token for every 1,000 bytes; text in a file and sealed text one for every 4;
any other file one for every 40, at least 1,600. What is only named, by a URL or an id, has 1,600.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from struct import unpack

UNSEEN = 1600
IMAGE_MOST = 1600
IMAGE_LEAST = 85
_PIXELS_A_TOKEN = 750
_SOUND_BYTES_A_TOKEN = 1000
_TEXT_BYTES_A_TOKEN = 4
_FILE_BYTES_A_TOKEN = 40
_DATA_URL = re.compile(r"data:([^;,]{0,200})(?:;[^;,]{0,200}){0,9};base64,")
# How the base64 of PNG, JPEG, GIF, RIFF (WebP and WAV) and PDF begins; shorter texts are no such thing.
_BEGINNINGS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "JVBERi0")
_LEAST_LENGTH = 64
_MOST_SEGMENTS = 1000
# A JPEG's segments of these kinds hold its size; those from D0 to D7, and 01, have no length.
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD8)})


def image(data: object, detail: object = None) -> int:
    """The tokens of an image given as base64, as a data URL, or by name."""
    if detail == "low":
        return IMAGE_LEAST
    size = None
    if isinstance(data, str):
        found = _DATA_URL.match(data)
        size = dimensions(data, found.end() if found else 0)
    if size is None:
        return UNSEEN
    width, height = size
    return min(IMAGE_MOST, max(IMAGE_LEAST, -(-width * height // _PIXELS_A_TOKEN)))


def file(data: object, media_type: object = None) -> int:
    """The tokens of base64, a data URL, or something that is only named."""
    if not isinstance(data, str):
        return UNSEEN
    start = 0
    if found := _DATA_URL.match(data):
        start = found.end()
        media_type = found[1]
    elif ":" in data[:20]:
        return UNSEEN
    kind = media_type if isinstance(media_type, str) else ""
    if kind.startswith("image/"):
        return image(data)
    size = (len(data) - start) * 3 // 4 - data.count("=", -2)
    if kind.startswith(("audio/", "video/")):
        return -(-size // _SOUND_BYTES_A_TOKEN)
    if kind.startswith("text/") or kind.endswith(("json", "xml", "yaml")):
        return -(-size // _TEXT_BYTES_A_TOKEN)
    return max(UNSEEN, -(-size // _FILE_BYTES_A_TOKEN))


def sealed(data: str, text_length: int = 0) -> int:
    """What encrypted text has beyond the text that is shown for it."""
    return max(0, len(data) * 3 // 4 - text_length + 3) // _TEXT_BYTES_A_TOKEN


def found_in(text: str) -> int | None:
    """The tokens of a text that is a data URL or the base64 of a common kind; None for any other text."""
    if len(text) < _LEAST_LENGTH:
        return None
    if _DATA_URL.match(text):
        return file(text)
    if not text.startswith(_BEGINNINGS):
        return None
    if text.startswith("JVBERi0"):
        return file(text)
    return file(text, "audio/wav") if _bytes(text, 8, 4) == b"WAVE" else image(text)


def dimensions(data: str, start: int = 0) -> tuple[int, int] | None:
    """Width and height from the head of a PNG, JPEG, GIF or WebP in base64; only what is needed is decoded."""
    if any(space in data[start : start + 100] for space in "\r\n "):
        data, start = "".join(data[start : start + 500_000].split()), 0
    head = _bytes(data, start=start, offset=0, count=30)
    size = (0, 0)
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:  # noqa: PLR2004 — the format's own offsets, here and below
        size = unpack(">II", head[16:24])
    elif head[:4] == b"GIF8" and len(head) >= 10:  # noqa: PLR2004
        size = unpack("<HH", head[6:10])
    elif head[8:12] == b"WEBP" and len(head) == 30:  # noqa: PLR2004
        size = _webp(head)
    elif head[:2] == b"\xff\xd8":
        size = _jpeg(data, start)
    return size if size[0] > 0 and size[1] > 0 else None


def _bytes(data: str, offset: int, count: int, start: int = 0) -> bytes:
    """Bytes out of the middle of base64; fewer than asked for, or none, where it ends or is none."""
    first = start + offset // 3 * 4
    quads = data[first : start + (offset + count + 2) // 3 * 4].replace("-", "+").replace("_", "/")
    try:
        return a2b_base64(quads)[offset % 3 :][:count]
    except ValueError:
        return b""


def _webp(head: bytes) -> tuple[int, int]:
    if head[12:16] == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = unpack("<HH", head[26:30])
    return width & 0x3FFF, height & 0x3FFF


def _jpeg(data: str, start: int) -> tuple[int, int]:
    """The size stands after segments of any length, a camera's thumbnail among them: they are stepped over."""
    offset = 2
    for _ in range(_MOST_SEGMENTS):
        segment = _bytes(data, offset, 9, start)
        if len(segment) < 9 or segment[0] != 0xFF:  # noqa: PLR2004
            break
        kind = segment[1]
        if kind in _JPEG_SIZES:
            height, width = unpack(">HH", segment[5:9])
            return width, height
        if kind == 0xFF:  # noqa: PLR2004 — padding
            offset += 1
        elif kind in _JPEG_BARE:
            offset += 2
        else:
            offset += 2 + int.from_bytes(segment[2:4], "big")
    return 0, 0
