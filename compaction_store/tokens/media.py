"""Estimates the tokens of images, sounds, files and encrypted text from their size, not from their base64 text.

An image counts as its width times its height divided by 750, but at least 85 and at most 1,600. It counts as 1,600 if
its size is unknown, and as 85 if its detail is low. Sound and video have one token for every 1,000 bytes. Text in a
file and encrypted text have one token for every 4 bytes. Any other file has one token for every 40 bytes, but at least
1,600. A file that is given by a URL or an id counts as 1,600.
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
# The beginnings of PNG, JPEG, GIF, RIFF (WebP and WAV) and PDF files in base64. A text of fewer than `_LEAST_LENGTH`
# characters is not considered a file.
_BEGINNINGS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "JVBERi0")
_LEAST_LENGTH = 64
_MOST_SEGMENTS = 1000
# The kinds of JPEG segments that have the size of the image, and the kinds that have no length field.
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD8)})


def image(data: object, detail: object = None) -> int:
    """Estimates the tokens of an image, given as base64, a data URL, a URL or an id."""
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
    """Estimates the tokens of a file, given as base64, a data URL, a URL or an id."""
    if not isinstance(data, str):
        return UNSEEN
    start = 0
    if found := _DATA_URL.match(data):
        start, media_type = found.end(), found[1]
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
    """Estimates the tokens of an encrypted text, minus the tokens of the same text in plain form, if there is one."""
    return max(0, len(data) * 3 // 4 - text_length + 3) // _TEXT_BYTES_A_TOKEN


def found_in(text: str) -> int | None:
    """Estimates the tokens of a text that is a data URL or a file in base64. Returns None for any other text."""
    if len(text) < _LEAST_LENGTH:
        return None
    if _DATA_URL.match(text) or text.startswith("JVBERi0"):
        return file(text)
    if not text.startswith(_BEGINNINGS):
        return None
    return file(text, "audio/wav") if _bytes(text, 8, 4) == b"WAVE" else image(text)


def dimensions(data: str, start: int = 0) -> tuple[int, int] | None:
    """Returns the width and height of a PNG, JPEG, GIF or WebP image in base64. Decodes only the header."""
    if any(space in data[start : start + 100] for space in "\r\n "):
        data, start = "".join(data[start : start + 500_000].split()), 0
    head = _bytes(data, start=start, offset=0, count=30)
    size = (0, 0)
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:  # noqa: PLR2004 — offsets of the format, here and below
        size = unpack(">II", head[16:24])
    elif head[:4] == b"GIF8" and len(head) >= 10:  # noqa: PLR2004
        size = unpack("<HH", head[6:10])
    elif head[8:12] == b"WEBP" and len(head) == 30:  # noqa: PLR2004
        size = _webp(head)
    elif head[:2] == b"\xff\xd8":
        size = _jpeg(data, start)
    return size if size[0] > 0 and size[1] > 0 else None


def _bytes(data: str, offset: int, count: int, start: int = 0) -> bytes:
    """Decodes `count` bytes of base64 from an offset. Returns fewer at the end, and none if the text is not base64."""
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
    """Returns the width and height of a JPEG. Skips other segments, such as a thumbnail, which may have any length."""
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
