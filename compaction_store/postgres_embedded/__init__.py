"""The embedded Postgres: its data folder, its server, and the process that stops an unused server.

`locks`, `postmaster`, `reaper` and `socket_links` must import only each other and the standard library, because the
reaper runs them in its own process, without the rest of the package.
"""
