"""The embedded Postgres: its data folder, its server, and the process that stops an unused server.

`locks`, `postmaster` and `reaper` need only the standard library: the reaper runs them in a process of its own.
"""
