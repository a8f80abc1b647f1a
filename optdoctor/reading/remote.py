"""Logs on other machines, through fsspec (extra `remote`)."""

import io
from typing import Any, BinaryIO

from optdoctor.errors import Unreadable
from optdoctor.reading.lazy_regex import lazy

_ADDRESS = lazy(r"[A-Za-z][A-Za-z0-9+.-]+(?:::[A-Za-z0-9+.-]+)*://")


def is_remote(path: str) -> bool:
    """Whether a path is an address, "s3://bucket/train.log"."""
    return "://" in path and _ADDRESS.match(path) is not None


def open_remote(address: str) -> BinaryIO:
    """The bytes of a remote file.

    Raises:
        Unreadable: it is missing or cannot be reached, or a package for it is missing.
    """
    try:
        import fsspec
    except ImportError as error:
        remedy = "pip install 'optdoctor[remote]'"
        raise Unreadable("remote paths need fsspec", remedy) from error
    try:
        return io.BufferedReader(_Remote(fsspec.open(address, "rb").open()), 1 << 20)
    except FileNotFoundError as error:
        raise Unreadable("no such file", "check the address") from error
    except IsADirectoryError as error:
        raise Unreadable("a remote folder", "name one file in it") from error
    except ImportError as error:
        raise Unreadable(_said(error), "install the package that it names") from error
    except Exception as error:  # whatever a cloud's own library raises
        raise Unreadable(_said(error), "check the address and your access to it") from error


class _Remote(io.RawIOBase):
    """Reads forward only; what goes wrong on the way is an `OSError`."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except Exception as error:
            raise OSError(0, _said(error)) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _said(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
