"""The embedded Postgres. The reaper runs `locks`, `postmaster`, `reaper` and `socket_links` in its own process, without
the rest of the package, so they must import only each other and the standard library.
"""
