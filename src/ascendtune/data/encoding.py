"""Text files in other encodings than UTF-8: conversion to UTF-8, and detection of a file's likely encoding."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Literal

from ascendtune.core.errors import DataError

Encoding = Literal["auto", "windows-1252", "windows-1251", "gb18030", "big5", "shift_jis", "euc-kr"]
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_PIECE = 1 << 16
_BYTES_THAT_TELL_THE_ENCODING = 1 << 20
_MOST_STRANGE = 0.02
"""Largest share of characters beyond ASCII that are rare in texts of these languages."""
_KANA = (0x82, 0x83)
"""First bytes of kana in Shift JIS."""
_SHARE_OF_KANA = 0.15
_CYRILLIC = 0xC0
"""First byte of the alphabet in windows-1251."""
_ABOVE_ASCII = re.compile(rb"[\x80-\xff]+")
_WESTERN = frozenset("äöüßÄÖÜẞéèêëàâçîïôûùœæÉÈÊÀÂÇÎÔŒñáíóúÑÁÍÓÚ¿¡ãõÃÕìòøåØÅÆ€–—“”„‘’‚…«»‹›°§´·²³½©®™•\u00a0")
_HUNGARIAN = frozenset("õûÕÛ")
"""The windows-1252 letters of the bytes that are ő and ű in windows-1250."""
_WITH_OTHERS = frozenset("ãäàèêçÃÄÀÈÊÇ")
"""In Portuguese, Estonian and French at least one of these is frequent; Hungarian has none of them."""
_WITHIN_WORDS = re.compile(r"(?<=[^\W\d_])[„“”‚‘](?=[^\W\d_])")
"""Positions at which DOS encodings have letters."""
_COMMON_CHINESE = re.compile(rb"(?:[\xb0-\xd7][\xa1-\xfe]|[\xa1-\xa3][\xa1-\xfe])")
"""The more frequent half of GB 2312's characters, its punctuation and full-width forms (GB 2312-80)."""
_MOST_COMMON_CHINESE = frozenset("的一是不了在有我人这中国大来上个到说们为你他要以会可")
_SHARE_OF_MOST_COMMON = 0.03
"""Korean text read as Chinese has common characters, but hardly ever these."""


class Transcoded(io.RawIOBase):
    """The text of a file as UTF-8, without a byte order mark.

    Args:
        file: the bytes of `path`, uncompressed.
        encoding: as Python names it.
    """

    def __init__(self, file: IO[bytes], path: Path, encoding: str) -> None:
        super().__init__()
        self._file, self._path, self._encoding = file, path, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._decoded = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._decoded:
            piece = self._file.read(_PIECE)
            try:
                self._decoded = self._decoder.decode(piece, final=not piece).encode()
            except UnicodeDecodeError as error:
                raise self._fault(error.reason) from error
            if not piece:
                break
        count = min(len(buffer), len(self._decoded))
        buffer[:count], self._decoded = self._decoded[:count], self._decoded[count:]
        return count

    def _fault(self, reason: str) -> DataError:
        if self._encoding == "utf-16":
            return DataError(
                f"not valid UTF-16, as which its first two bytes mark it: {reason}",
                code="not-utf8",
                remedy="save it as UTF-8, or copy it again: it may be cut off",
                where=self._path,
            )
        return DataError(
            f"not valid {self._encoding}, the `encoding` of this data set: {reason}",
            code="encoding-mismatch",
            remedy="correct or remove `encoding`, or save the file as UTF-8",
            where=self._path,
        )


def likely_encoding(line: bytes) -> Encoding:
    """The likely encoding, for a message: western European Windows if half of the bytes above 127 are isolated, as in
    German or French; Shift JIS or GB18030 by the first bytes of pairs; Cyrillic if hardly any byte is below its
    alphabet."""
    if _mostly_alone(line):
        return "windows-1252"
    beyond = [byte for byte in line if byte > 127]
    if sum(byte in _KANA for byte in beyond) > _SHARE_OF_KANA * len(beyond):
        return "shift_jis"
    runs = _ABOVE_ASCII.findall(line)
    is_even = all(len(run) % 2 == 0 for run in runs)
    is_cyrillic = sum(byte >= _CYRILLIC for byte in beyond) > (1 - _MOST_STRANGE) * len(beyond)
    return "windows-1251" if is_cyrillic and not is_even else "gb18030"


def certain_encoding(lines: Iterable[bytes]) -> Encoding | None:
    """The encoding of text that is not UTF-8, if its characters leave no doubt.

    German, French or Spanish text in windows-1252 has a few letters and quotation marks beyond ASCII, nearly all of
    them isolated; Chinese text in GB18030 has pairs of bytes that are frequent characters.

    Args:
        lines: of a file; of those with bytes above 127 the first MiB is inspected.
    """
    kept, size = list[bytes](), 0
    for line in lines:
        if _ABOVE_ASCII.search(line):
            kept.append(line)
            size += len(line)
            if size > _BYTES_THAT_TELL_THE_ENCODING:
                break
    fitting = [name for name, fits in (("windows-1252", _is_western), ("gb18030", _is_chinese)) if fits(b"".join(kept))]
    certain: Encoding | None = fitting[0] if len(fitting) == 1 else None  # type: ignore[assignment]
    return certain


def _is_western(text: bytes) -> bool:
    try:
        decoded = text.decode("windows-1252")
    except UnicodeDecodeError:
        return False
    beyond = [character for character in decoded if ord(character) > 127]
    strange = sum(character not in _WESTERN for character in beyond) + len(_WITHIN_WORDS.findall(decoded))
    hungarian = sum(character in _HUNGARIAN for character in beyond)
    if "á" in decoded and hungarian > sum(character in _WITH_OTHERS for character in beyond):
        strange += hungarian
    return bool(beyond) and _mostly_alone(text) and strange <= _MOST_STRANGE * len(beyond)


def _is_chinese(text: bytes) -> bool:
    try:
        beyond = [character for character in text.decode("gb18030") if ord(character) > 127]
    except UnicodeDecodeError:
        return False
    common = sum(len(_COMMON_CHINESE.findall(run)) for run in _ABOVE_ASCII.findall(text))
    most_common = sum(character in _MOST_COMMON_CHINESE for character in beyond)
    is_common = len(beyond) - common <= 5 * _MOST_STRANGE * len(beyond)
    return is_common and not _mostly_alone(text) and most_common > _SHARE_OF_MOST_COMMON * len(beyond)


def _mostly_alone(text: bytes) -> bool:
    runs = _ABOVE_ASCII.findall(text)
    return 2 * sum(len(run) == 1 for run in runs) >= len(runs)
