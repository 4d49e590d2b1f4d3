"""The statistics of the planner, for tests of plans."""

# As right after a bulk load, before autovacuum has seen a table for the first time. For a superuser, to be rolled back.
FORGET = """
    SET LOCAL allow_system_table_mods = on;
    DELETE FROM pg_statistic WHERE starelid IN (
        SELECT oid FROM pg_class WHERE relnamespace = 'compaction_store'::regnamespace);
    UPDATE pg_class SET reltuples = -1, relpages = 0, relallvisible = 0
    WHERE relnamespace = 'compaction_store'::regnamespace AND relkind IN ('r', 'i');
"""
