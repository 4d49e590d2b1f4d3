"""Brings the schema up to date, and gives the services' logins their passwords and roles. May be repeated.

It runs with the login of the database's owner. Each login's password is the content of a file in the folder of secrets,
so that a changed file and another run change the password.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
from psycopg import sql

SECRETS = Path("/run/secrets")
ROLES = {"agents": ("application",), "auditors": ("auditor", "reviewer")}


def main() -> None:
    subprocess.run(["compaction-store", "migrate"], check=True)
    # Without a connection string: from $PGHOST, $PGUSER and $PGPASSWORD, like the command line.
    with psycopg.connect(autocommit=True) as connection:
        for login, roles in ROLES.items():
            password = (SECRETS / f"{login}_password").read_text(encoding="utf-8").strip()
            found = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (login,)).fetchone()
            verb = sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}" if found else "CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(verb.format(sql.Identifier(login), sql.Literal(password)))
            for role in roles:
                subprocess.run(["compaction-store", "grant", login, role], check=True)


if __name__ == "__main__":
    main()
