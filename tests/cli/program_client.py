"""Asks the process that keeps the program loaded for a run of it: `program_client.py SOCKET ARGUMENT…`.

It imports almost nothing, because it starts often.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def request(
    path: str, arguments: object, env: dict[str, str], folder: str, files: list[int], script: str | None
) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    text = json.dumps({"arguments": arguments, "environment": env, "folder": folder, "script": script})
    socket.send_fds(connection, [text.encode()], files)
    return connection


def main() -> None:
    with request(sys.argv[1], sys.argv[2:], dict(os.environ), os.getcwd(), [0, 1, 2], None) as connection:  # noqa: PTH109
        answers = connection.makefile("r")
        answers.readline()
        code = int(answers.readline())
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
